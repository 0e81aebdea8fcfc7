"""Iteration → learning rate γ_t: constant, step or multi-step, each with a linear warm-up."""

from dataclasses import dataclass

from mammofed.errors import BadSetting

FORMS = "constant, step:EVERY:FACTOR, or multi-step:AT,AT,...:FACTOR"


@dataclass(frozen=True)
class Schedule:
    """A learning rate over the iterations of a whole run; its `str` is the form that `parse_schedule` reads."""

    rate: float  # γ_0
    every: int = 0  # step: multiply by `factor` every so many iterations
    milestones: tuple[int, ...] = ()  # multi-step: multiply by `factor` at each of these
    factor: float = 1.0
    warmup: int = 0  # iterations over which γ rises linearly

    def __call__(self, iteration: int) -> float:
        """γ_t; the warm-up starts at γ_0/warmup, never at zero, so that Σ γ_t > 0 in any round."""
        drops = sum(iteration >= at for at in self.milestones)
        drops += iteration // self.every if self.every else 0
        rise = min(1.0, (iteration + 1) / self.warmup) if self.warmup else 1.0
        return self.rate * rise * self.factor**drops

    def __str__(self) -> str:
        if self.every:
            return f"step:{self.every}:{self.factor:g}"
        if self.milestones:
            return f"multi-step:{','.join(map(str, self.milestones))}:{self.factor:g}"
        return "constant"


def parse_schedule(form: str, rate: float, warmup: int = 0) -> Schedule:
    """Read `constant`, `step:1000:0.5` or `multi-step:2000,3000:0.5`."""
    if not rate > 0 or warmup < 0:
        raise BadSetting(f"learning rate {rate}, warm-up {warmup}: a rate above 0 and a warm-up of 0 or more")
    kind, *words = form.split(":")
    try:
        if kind == "constant" and not words:
            return Schedule(rate, warmup=warmup)
        numbers, factor = words
        at = tuple(int(number) for number in numbers.split(","))
        if min(at) > 0 and float(factor) > 0:
            if kind == "step" and len(at) == 1:
                return Schedule(rate, every=at[0], factor=float(factor), warmup=warmup)
            if kind == "multi-step":
                return Schedule(rate, milestones=at, factor=float(factor), warmup=warmup)
    except ValueError:
        pass
    raise BadSetting(f"schedule {form!r}: use {FORMS}")
