"""The papers' models, by name, and a person's own."""

from laconic.models.registry import ModelInfo, build, models

__all__ = ["ModelInfo", "build", "models"]
