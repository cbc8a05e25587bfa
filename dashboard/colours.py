"""Which colour a model has, the same on every page: a number of the palette in static/style.css.

The models of the present configuration have them in the order of their names, so that neighbours differ as long as
there are enough. One that is configured no more has none, and is drawn grey.
"""

from dashboard.history import History

HUES = 12
TIME_LIMIT_S = 5.0

_CONFIGURED = """
SELECT model FROM model_configs WHERE seq = (SELECT max(seq) FROM model_configs) ORDER BY model
"""


async def hues(history: History) -> dict[str, int]:
    """Model to number of its colour."""
    answer = await history.ask(_CONFIGURED, time_limit_s=TIME_LIMIT_S)
    return {model: place % HUES for place, (model,) in enumerate(answer.rows)}


def css(hue: int | None) -> str:
    """A colour that the page's script puts the real one in the place of."""
    return "var(--line-strong)" if hue is None else f"var(--hue-{hue})"
