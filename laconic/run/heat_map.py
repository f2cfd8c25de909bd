"""A heat map of the similarity of clients' gradients (FedCOMGATE's paper, equation (7))."""

from __future__ import annotations

import io

import numpy as np


def heat_map(similarity: np.ndarray, title: str) -> bytes | None:
    """Draw a similarity matrix as a PNG; None if matplotlib (the extra `plot`) is not installed."""
    try:
        from matplotlib.figure import Figure  # late: an extra
    except ImportError:
        return None
    figure = Figure(figsize=(6, 5), layout="constrained", dpi=150)
    axes = figure.subplots()
    image = axes.imshow(similarity, vmin=-1, vmax=1, cmap="RdBu_r", interpolation="nearest")
    axes.set(title=title, xlabel="client", ylabel="client")
    figure.colorbar(image, label="cosine of the clients' full gradients")
    content = io.BytesIO()
    figure.savefig(content, format="png")
    return content.getvalue()
