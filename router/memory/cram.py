"""How many conversations the prompt cache of a llama-server holds: the sizing of `cache-ram` (`cram`).

A conversation that is in no slot costs something fixed, and something per token. The cache drops the one that was not
used for longest, so a round over more conversations than it holds finds none of them: it is all or nothing.
"""

from dataclasses import dataclass

from router.config import ModelConfig
from router.memory.estimate import STATE_BYTES, per_token
from router.memory.geometry import Geometry

KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one conversation: `fixed_mib` whatever its length, and `growth_kib` for each token."""

    fixed_mib: float
    growth_kib: float

    def of(self, tokens: int) -> float:
        """MiB of a conversation of so many tokens."""
        return self.fixed_mib + tokens * self.growth_kib / 1024

    def capacity(self, tokens: int, cram_mib: float) -> int:
        """Conversations of that length that fit."""
        cost = self.of(tokens)
        return int(cram_mib / cost) if cost > 0 else 0

    def needed(self, tokens: int, conversations: int) -> int:
        """MiB for so many conversations of that length."""
        return int(-(-self.of(tokens) * conversations // 1))


def cost_of(shape: Geometry, model: ModelConfig, checkpoints: int) -> Cost:
    """By the layers of the model. Each context checkpoint holds the fixed part once more."""
    growth = sum(per_token(layer, model) for layer in shape.layers if layer.kind == "growing")
    window = sum(per_token(layer, model) for layer in shape.layers if layer.kind == "sliding") * shape.window
    state = sum(layer.state for layer in shape.layers) * STATE_BYTES
    return Cost((window + state) * (1 + checkpoints) / MIB, growth / KIB)
