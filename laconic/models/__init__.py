"""The papers' models by name, and users' own models."""

from laconic.models.registry import ModelInfo, build, models

__all__ = ["ModelInfo", "build", "models"]
