"""Values are shown with their units, as a person would write them."""

import pytest

from dashboard import units


@pytest.mark.parametrize(
    ("us", "said"),
    [
        (None, "–"),
        (0, "0 µs"),
        (850, "850 µs"),
        (80_000, "80 ms"),
        (999_499, "999 ms"),
        (999_600, "1 s"),
        (1_250_000, "1.25 s"),
        (90_000_000, "90 s"),
        (200_000_000, "3 min 20 s"),
        (7_500_000_000, "2 h 5 min"),
        (356_400_000_000, "4 d 3 h"),
        (-80_000, "−80 ms"),
    ],
)
def test_a_duration_is_said_in_the_unit_that_fits(us: int | None, said: str) -> None:
    assert units.duration(us) == said


def test_no_duration_shows_sixty_seconds_or_minutes() -> None:
    """Rounding must carry over."""
    for us in range(100_000_000, 8_000_000_000, 1_333_337):
        said = units.duration(us)
        assert "min 60 s" not in said
        assert "h 60 min" not in said


def test_other_values_have_their_units_too() -> None:
    assert units.moment(0) == "1970-01-01 00:00:00 UTC"
    assert units.iso(1_500_000) == "1970-01-01T00:00:01.500Z"
    assert units.number(1234567) == "1,234,567"
    assert units.number(0.12345) == "0.123"
    assert units.count(1, "request") == "1 request"
    assert units.count(2, "entry", "entries") == "2 entries"
    assert units.rate(83.4) == "83.4 tokens/s"
    assert [units.percent(share) for share in (0.0, 0.004, 0.42, 1.0, None)] == ["0 %", "0.4 %", "42 %", "100 %", "–"]
    assert [units.signed_percent(share) for share in (0.04, -0.12)] == ["+4 %", "−12 %"]
    assert [units.size(octets) for octets in (512, 1536, 20 << 20, 3 << 30)] == ["512 B", "1.5 KiB", "20 MiB", "3 GiB"]
    assert [units.mib(value) for value in (900, 24576)] == ["900 MiB", "24 GiB"]
    assert [units.cost(dollars) for dollars in (1.2, 0.00042, None)] == ["$1.20", "$0.00042", "–"]
    assert units.listed(range(10), 3) == "0, 1, 2 and 7 more"
    assert [units.gpus(numbers) for numbers in ([], [1], [0, 1])] == ["no GPU", "GPU 1", "GPUs 0 and 1"]
