"""Widths that follow from several settings: are they whole numbers, and not too large?"""

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


def check_features(
    feature_map: str,
    features: int,
    dim: int,
    heads: int,
    of_keys: str,
    advice: dict[str, str] | None = None,
) -> None:
    """Refuses more features than any width may be.

    Args:
        features: of a key of `dim` channels, for each of `heads`.
        of_keys: the setting that `dim` grows with.
        advice: what makes fewer of them, for some maps.

    Raises:
        ValueError: what is too much, and which setting to lower.
    """
    if heads * features <= MAX_WIDTH:
        return
    fewer = {"favor": "lower random_features", "dpfp": f"lower dpfp_nu or {of_keys}"}
    fewer |= advice or {}
    raise ValueError(
        f"feature_map={feature_map} makes {features:,} features of keys of {dim} channels, for "
        f"heads={heads}; up to {MAX_WIDTH:,} are allowed in all: "
        f"{fewer.get(feature_map, f'lower {of_keys}')}"
    )
