"""Why did this request wait, why was this model evicted, what was the state then.

`explain_request`, `explain_swap` and `explain_time` give the answers as data, `explain_text` words them.
"""

from replay.explain_request import RequestStory, explain_request
from replay.explain_swap import SwapStory, explain_swap
from replay.explain_text import moment_text, request_text, swap_text
from replay.explain_time import Moment, explain_time

__all__ = [
    "Moment",
    "RequestStory",
    "SwapStory",
    "explain_request",
    "explain_swap",
    "explain_time",
    "moment_text",
    "request_text",
    "swap_text",
]
