"""Tables of settings, from the models that check them."""

from __future__ import annotations

from pydantic.fields import FieldInfo

from mtlkit.config.settings import Settings, accepted, bounds, display


def settings_table(model: type[Settings], leave_out: type[Settings] | None = None) -> str:
    """Return all settings of ``model`` as Markdown, one table per panel.

    Args:
        model: whose settings.
        leave_out: a model whose settings are not repeated.
    """
    skipped = set() if leave_out is None else set(leave_out.model_fields)
    panels: dict[str, list[str]] = {}
    for name, field in model.model_fields.items():
        if name not in skipped:
            cells = (f"`{name}`", field.description or "", _values(field), _default(field))
            row = f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
            panels.setdefault(display(field).panel, []).append(row)
    lines = []
    for panel, rows in panels.items():
        lines += [f"**{panel}**", "", "| key | meaning | values | default |", "|---|---|---|---|"]
        lines += [*rows, ""]
    return "\n".join(lines)


def _values(field: FieldInfo) -> str:
    limits = bounds(field)
    return f"{accepted(field)}, {limits}" if limits else accepted(field)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "(required)"
    value = field.default
    if value in (None, "", [], {}):
        return ""
    if isinstance(value, bool):
        return "`true`" if value else "`false`"
    return f"`{', '.join(map(str, value)) if isinstance(value, list | tuple) else value}`"
