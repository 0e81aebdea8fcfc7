"""Styles are data: names round-trip, the sigmoid keeps [0, 1], and p decides per image."""

import numpy as np
import pytest

from mammo.style import NO_STYLE, Style, is_styled, parse_style, sigmoid
from mammofed.errors import BadSetting


@pytest.mark.parametrize("name", ["none", "voi:NORMAL", "voi:0", "sigmoid:0.5:0.25"])
def test_a_style_name_round_trips(name: str) -> None:
    assert str(parse_style(name)) == name


@pytest.mark.parametrize("name", ["", "voi:", "sigmoid:1", "sigmoid:a:b", "sigmoid:0.5:0", "sigmoid:nan:1"])
def test_a_bad_style_name_raises(name: str) -> None:
    with pytest.raises(BadSetting, match="style"):
        parse_style(name)


def test_the_sigmoid_rises_from_0_to_1() -> None:
    out = sigmoid(np.linspace(0, 1, 101, dtype=np.float32), Style("sigmoid", centre=0.4, width=0.3))
    assert out.dtype == np.float32
    assert out[0] == pytest.approx(0, abs=1e-6)
    assert out[-1] == pytest.approx(1, abs=1e-6)
    assert (np.diff(out) > 0).all()


def test_p_is_the_share_of_styled_images() -> None:
    images = [f"image{i}" for i in range(4000)]
    assert np.mean([is_styled(image, 0.7, seed=0) for image in images]) == pytest.approx(0.7, abs=0.03)
    assert all(is_styled(image, 1.0, seed=0) for image in images)
    assert not any(is_styled(image, 0.0, seed=0) for image in images)
    assert parse_style("none") == NO_STYLE
