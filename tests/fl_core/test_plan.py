"""Plans and schedules: checked when made, and the same after a trip through JSON."""

import json
from typing import Any

import pytest

from fl_core.plan import Plan, plan_from_json
from fl_core.schedule import Schedule, parse_schedule
from mammofed.errors import BadSetting


def test_a_plan_survives_json() -> None:
    plan = Plan("fixbn", "resnet18", parse_schedule("multi-step:20,30:0.5", 0.05, 5), freeze_from=12, seed=3)
    assert plan_from_json(json.loads(json.dumps(plan.as_json()))) == plan


@pytest.mark.parametrize(
    ("form", "rates"),
    [
        ("constant", [0.8, 0.8, 0.8, 0.8, 0.8]),
        ("step:2:0.5", [0.8, 0.8, 0.4, 0.4, 0.2]),
        ("multi-step:1,4:0.5", [0.8, 0.4, 0.4, 0.4, 0.2]),
    ],
)
def test_a_schedule_gives_its_rates(form: str, rates: list[float]) -> None:
    schedule = parse_schedule(form, 0.8)
    assert [schedule(t) for t in range(5)] == pytest.approx(rates)
    assert str(schedule) == form


def test_warm_up_rises_linearly_and_never_from_zero() -> None:
    assert [Schedule(1.0, warmup=4)(t) for t in range(6)] == pytest.approx([0.25, 0.5, 0.75, 1, 1, 1])
    assert parse_schedule("step:2:0.5", 1.0, 4)(3) == pytest.approx(0.5)


@pytest.mark.parametrize(
    "form", ["", "cosine", "step", "step:0:0.5", "step:2,3:0.5", "multi-step:a:0.5", "step:2:-1"]
)
def test_an_unknown_schedule_raises(form: str) -> None:
    with pytest.raises(BadSetting, match="schedule"):
        parse_schedule(form, 0.1)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"algorithm": "fedsgd"}, "choose one of centralized"),
        ({"momentum": 0.9, "algorithm": "scaffold"}, "inflate the control variates"),
        ({"momentum": 0.9, "algorithm": "bn-scaffold-std"}, "inflate the control variates"),
        ({"momentum": 1.0}, "momentum"),
        ({"batch": 1}, "batch 1"),
        ({"rounds": 0}, "rounds 0"),
        ({"precision": "int8"}, "precision"),
        ({"variance_floor": 0.0}, "floor"),
    ],
)
def test_a_plan_that_cannot_work_raises(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadSetting, match=reason):
        Plan(**{"algorithm": "fedavg", "model": "densenet-small", "schedule": Schedule(0.1), **change})


def test_momentum_is_kept_where_no_gradient_is_corrected() -> None:
    assert Plan("fedavg", "densenet-small", Schedule(0.1), momentum=0.9).momentum == 0.9
