"""NVFlare at the site: the job's process takes the coordinator's orders and hands them to the site's own work."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from nvflare.collab import collab

from app.federation.line import Caller
from app.federation.processes import leave_with_parent
from app.federation.provision import SERVER
from app.site.data import read_settings
from app.site.home import HOME
from app.site.kit import server_host
from app.site.state import Refusal, only_process, run_folder
from app.site.work import SiteWork

ANSWER = 30.0  # seconds for a part of a model
PATIENCE = 60.0  # seconds for which a lost part is asked for again
MEETING = 3600.0  # seconds for which the other sites are waited for in a layer


class Agent:
    """What NVFlare loads in the site's job process."""

    kind = SiteWork

    def __init__(self, run: str) -> None:
        self.run = run
        self.work: SiteWork | None = None
        self.caller: Caller | None = None
        self.held = ExitStack()
        leave_with_parent()  # before NVFlare reports to the parent, over and over where it is gone

    @collab.init  # type: ignore[untyped-decorator]
    def begin(self) -> None:
        """Open the site's folder, alone in the run's part of it."""
        home = Path(os.environ[HOME])
        self.held.enter_context(only_process(run_folder(home, self.run)))
        server = collab.server

        def fetch(digest: str, offset: int, size: int) -> Iterator[bytes | memoryview]:
            end = offset + size
            if self.caller is not None:
                question = json.dumps({"digest": digest, "offset": offset, "size": size})
                for block in self.caller.ask(question, size):
                    offset += len(block)
                    yield block
            if offset < end:
                yield fetch_far(digest, offset, end - offset)

        def fetch_far(digest: str, offset: int, size: int) -> bytes:
            until = time.monotonic() + PATIENCE
            while True:
                try:
                    part: bytes = server(timeout=ANSWER).fetch(digest, offset, size)
                    return part
                except Exception as error:  # whatever the engine raises, the part did not come
                    if time.monotonic() > until:
                        raise Refusal("the model on offer did not arrive") from error
                    time.sleep(0.2)

        def meet(key: str, values: bytes, kind: str, weight: int) -> tuple[bytes, int]:
            mean, total = server(timeout=MEETING).meet(key, values, kind, weight)
            return mean, total

        self.work = self.kind(home, read_settings(home), fetch, meet)

    @collab.publish  # type: ignore[untyped-decorator]
    def take(self, order: str, text: str) -> bytes | memoryview:
        """One order of the coordinator, and its answer; sites give each other none."""
        return self.ordered().take(order, text)

    @collab.publish  # type: ignore[untyped-decorator]
    def dial(self, port: int, word: str) -> None:
        """Where large files have a shorter way, and what to say there; what cannot be sent ends the line."""
        work, home = self.ordered(), Path(os.environ[HOME])
        startup, host = home / "kit" / "startup", server_host(home)
        self.caller = Caller(startup, host, port, bytes.fromhex(word), lambda text: work.send(json.loads(text)))

    def ordered(self) -> SiteWork:
        """Who works, if it is the coordinator who calls."""
        if collab.caller != SERVER:
            raise Refusal(f"orders come from the coordinator, not from {collab.caller!r}")
        assert self.work is not None  # `begin` has run
        return self.work

    @collab.final  # type: ignore[untyped-decorator]
    def end(self) -> None:
        """Let go of the run's folder."""
        self.held.close()
