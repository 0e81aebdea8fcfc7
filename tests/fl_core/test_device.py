"""Devices and precisions: written for GPUs, held to their promises on the CPU."""

import pytest
import torch

from fl_core.device import Bench, pick_device, seeded
from fl_core.family import ALGORITHMS
from fl_core.local import first_state, take_step
from mammofed.errors import BadSetting
from tests.laws.toy import DIFFERENT, effective_model, plan, tiny_net, train


def net() -> torch.nn.Module:
    return tiny_net(torch.float32)


@pytest.mark.parametrize("name", ["cpu:1", "gpu", "cuda:99", "mps:1", "cuda:x", ""])
def test_an_unknown_device_raises(name: str) -> None:
    with pytest.raises(BadSetting, match="no such device"):
        pick_device(name)


def test_auto_finds_a_device() -> None:
    assert pick_device("auto").type in ("cpu", "cuda", "mps")
    assert pick_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_bf16_trains_every_row_and_keeps_float32_states(name: str, channels_last: bool) -> None:
    planned = plan(name, precision="bf16", channels_last=channels_last, rounds=3)
    mixed = train(DIFFERENT, planned, net)
    exact = train(DIFFERENT, plan(name, channels_last=channels_last, rounds=3), net)
    tensors = {**effective_model(mixed), **mixed.server.c, **mixed.server.k}
    floats = [tensor for tensor in tensors.values() if tensor.is_floating_point()]
    assert all(tensor.dtype == torch.float32 and tensor.isfinite().all() for tensor in floats)
    assert mixed.record["loss"] == pytest.approx(exact.record["loss"], abs=0.1)
    assert mixed.record["loss"] != exact.record["loss"]


def test_fp16_skips_a_step_that_overflows_and_says_so() -> None:
    bench = Bench(torch.device("cpu"), "fp16")
    weight = torch.nn.Parameter(torch.ones(1))
    optimiser = torch.optim.SGD([weight], lr=1.0)
    scaler = bench.scaler(2.0**16)
    taken = []
    for grow in (1e35, 1.0):
        optimiser.zero_grad()
        scaler.scale(weight.sum() * grow).backward()
        scaler.unscale_(optimiser)
        taken.append(take_step(scaler, optimiser))
    assert taken == [False, True]
    assert weight.item() == 0.0
    assert scaler.get_scale() == 2.0**15


def test_the_memory_format_changes_no_state() -> None:
    bench = Bench(torch.device("cpu"), channels_last=True)
    state = first_state(bench.place(net())).model
    assert all(tensor.is_contiguous() for tensor in state.values())


def test_a_seeded_block_leaves_the_generator_as_it_was() -> None:
    torch.manual_seed(4)
    before = torch.random.get_rng_state()
    with seeded([1, 2], torch.device("cpu")):
        first = torch.rand(3)
    with seeded([1, 2], torch.device("cpu")):
        again = torch.rand(3)
    assert torch.equal(first, again)
    assert torch.equal(before, torch.random.get_rng_state())
