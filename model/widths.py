"""Widths that settings give as multiples of d_model."""

from model.fields import MAX_WIDTH


def whole_width(
    d_model: int, factor: float, name: str, heads: int = 1, heads_name: str = "heads"
) -> int:
    """`factor` times d_model, as channels of `heads` heads.

    Raises:
        ValueError: it is no whole number of channels per head, or more than any width may be.
    """
    width = d_model * factor
    if width > MAX_WIDTH:
        raise ValueError(
            f"{name}={factor} gives the width {width:g} (d_model={d_model}); widths go up to "
            f"{MAX_WIDTH}: lower {name} or d_model"
        )
    if width.is_integer() and width % heads == 0 and width:
        return int(width)
    if heads == 1:
        raise ValueError(
            f"{name}={factor} gives the width {width:g} (d_model={d_model}), which is no whole "
            f"number of channels; {name}={max(1, round(width)) / d_model:g} gives one"
        )
    raise ValueError(
        f"{name}={factor} gives the width {width:g} (d_model={d_model}), which "
        f"{heads_name}={heads} does not divide into whole numbers; change {name} or {heads_name}"
    )
