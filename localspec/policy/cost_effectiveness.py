"""The metric by which everything is chosen: cost-effectiveness M = speedup over relative peak memory (S3D, eq. 13)."""


def cost_effectiveness(speed: float, memory: float, plain_speed: float, plain_memory: float) -> float:
    """M = (v₁ / v₀) / (m₁ / m₀): speedup over relative memory (S3D, eq. 13). Any baseline, any units."""
    return (speed / plain_speed) / (memory / plain_memory)
