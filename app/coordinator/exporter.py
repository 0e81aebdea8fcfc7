"""Exports to make → one process at a time, apart from the service; the next waits for the one before."""

from concurrent.futures import ThreadPoolExecutor
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess

from app.coordinator.formats import ExportFailed, Job, export
from mammofed.errors import MammofedError


class Exporter:
    """The one place where exports are made."""

    def __init__(self, context: ForkServerContext) -> None:
        self.context = context
        self.pool = ThreadPoolExecutor(1, "exporter")  # a queue that holds no thread of the service
        self.process: BaseProcess | None = None

    def make(self, job: Job) -> str:
        """The name of the file that was made; called in the pool's thread."""
        ours, theirs = self.context.Pipe()
        self.process = self.context.Process(target=export, args=(job, theirs), daemon=True)
        self.process.start()
        theirs.close()
        try:
            answer: str | MammofedError = ours.recv()
        except EOFError as error:
            raise ExportFailed("the process that makes the file ended before it was done") from error
        finally:
            self.process.join()
            ours.close()
        if isinstance(answer, MammofedError):
            raise answer
        return answer

    def stop(self) -> None:
        """End what is being made; what waits is not begun."""
        self.pool.shutdown(wait=False, cancel_futures=True)
        if self.process is not None:
            self.process.terminate()
        self.pool.shutdown(wait=True)
