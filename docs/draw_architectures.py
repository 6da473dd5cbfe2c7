"""Draw the architectures as SVG files: ``python docs/draw_architectures.py``.

A drawing is a grid of boxes and the arrows between them. Colors say who trains a box: all tasks
(shared), one task, or the method, which stands where the features fork.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "images"
COLORS = {"shared": "#9ecae1", "a": "#fdd0a2", "b": "#c7e9c0", "method": "#dadaeb", "plain": "#f0f0f0"}
WIDTH, HEIGHT, GAP_X, GAP_Y, MARGIN = 104, 30, 34, 16, 10


@dataclass(frozen=True)
class Box:
    """A box at a column and row of the grid; rows may be fractions."""

    text: str
    column: float
    row: float
    color: str

    @property
    def x(self) -> float:
        return MARGIN + self.column * (WIDTH + GAP_X)

    @property
    def y(self) -> float:
        return MARGIN + self.row * (HEIGHT + GAP_Y)


def svg(title: str, boxes: dict[str, Box], arrows: list[tuple[str, str]]) -> str:
    width = max(box.x for box in boxes.values()) + WIDTH + MARGIN
    height = max(box.y for box in boxes.values()) + HEIGHT + MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" font-family="sans-serif" font-size="12" role="img">',
        f"<title>{title}</title>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="#555"/></marker></defs>',
        f'<rect width="{width:g}" height="{height:g}" fill="white"/>',
    ]
    for start, end in arrows:
        first, second = boxes[start], boxes[end]
        lines.append(
            f'<line x1="{first.x + WIDTH:g}" y1="{first.y + HEIGHT / 2:g}" x2="{second.x:g}" '
            f'y2="{second.y + HEIGHT / 2:g}" stroke="#555" marker-end="url(#tip)"/>'
        )
    for box in boxes.values():
        lines += [
            f'<rect x="{box.x:g}" y="{box.y:g}" width="{WIDTH}" height="{HEIGHT}" rx="4" '
            f'fill="{COLORS[box.color]}" stroke="#555"/>',
            f'<text x="{box.x + WIDTH / 2:g}" y="{box.y + HEIGHT / 2 + 4:g}" '
            f'text-anchor="middle">{box.text}</text>',
        ]
    return "\n".join([*lines, "</svg>", ""])


def drawing(title: str, boxes: str, arrows: str) -> str:
    """Boxes as ``key: text @ column, row, color`` lines, arrows as ``from > to`` items."""
    found = {}
    for line in boxes.strip().splitlines():
        key, rest = line.split(":", 1)
        text, place = rest.split("@")
        column, row, color = (item.strip() for item in place.split(","))
        found[key.strip()] = Box(text.strip(), float(column), float(row), color)
    pairs = [tuple(item.split(">")) for item in arrows.split()]
    return svg(title, found, [(start, end) for start, end in pairs])


DRAWINGS = {
    "hard_sharing": drawing(
        "Hard sharing: backbone, method, one head per task",
        """
        x: x @ 0, 0.5, plain
        z: backbone @ 1, 0.5, shared
        m: method @ 2, 0.5, method
        a: head a @ 3, 0, a
        b: head b @ 3, 1, b
        """,
        "x>z z>m m>a m>b",
    ),
    "smp": drawing(
        "SMP: the maps of all scales are forked jointly; each task has a decoder",
        """
        x: image @ 0, 1, plain
        e1: encoder 1/2 @ 1, 0, shared
        e2: encoder 1/8 @ 1, 1, shared
        e3: encoder 1/32 @ 1, 2, shared
        m: method @ 2, 1, method
        a: decoder a @ 3, 0.5, a
        b: decoder b @ 3, 1.5, b
        """,
        "x>e1 x>e2 x>e3 e1>m e2>m e3>m m>a m>b",
    ),
    "segnet": drawing(
        "SegNet: shared encoder and decoder, two convolutions per task",
        """
        x: image @ 0, 0.5, plain
        e: encoder @ 1, 0.5, shared
        d: decoder @ 2, 0.5, shared
        m: method @ 3, 0.5, method
        a: 3x3, 1x1 conv a @ 4, 0, a
        b: 3x3, 1x1 conv b @ 4, 1, b
        """,
        "x>e e>d d>m m>a m>b",
    ),
    "paper_nets": drawing(
        "The nets of the paper: a small backbone and light heads",
        """
        x: image @ 0, 1, plain
        c: convolutions @ 1, 1, shared
        d: dense, BN @ 2, 1, shared
        m: method @ 3, 1, method
        a: classification @ 4, 0, a
        b: regression @ 4, 1, b
        e: binary @ 4, 2, a
        """,
        "x>c c>d d>m m>a m>b m>e",
    ),
    "mtan": drawing(
        "MTAN: every task attends to the shared map of each level",
        """
        x: image @ 0, 1, plain
        p1: level 1 @ 1, 0, shared
        p2: level 2 @ 1, 1, shared
        p3: level 3 @ 1, 2, shared
        m: method @ 2, 1, method
        a: attention a @ 3, 0.5, a
        b: attention b @ 3, 1.5, b
        ha: head a @ 4, 0.5, a
        hb: head b @ 4, 1.5, b
        """,
        "x>p1 x>p2 x>p3 p1>m p2>m p3>m m>a m>b a>ha b>hb",
    ),
    "cross_stitch": drawing(
        "Cross-stitch: one network per task, features are mixed after every stage",
        """
        x: x @ 0, 0.5, plain
        a1: stage 1 a @ 1, 0, shared
        b1: stage 1 b @ 1, 1, shared
        s: mix @ 2, 0.5, shared
        a2: stage 2 a @ 3, 0, shared
        b2: stage 2 b @ 3, 1, shared
        m: (fork=streams) @ 4, 0.5, method
        ra: mix, head a @ 5, 0, a
        rb: mix, head b @ 5, 1, b
        """,
        "x>a1 x>b1 a1>s b1>s s>a2 s>b2 a2>m b2>m m>ra m>rb",
    ),
    "mmoe": drawing(
        "MMoE: all tasks mix the same experts, each by its gate",
        """
        x: x @ 0, 1, plain
        e1: expert 1 @ 1, 0, shared
        e2: expert 2 @ 1, 1, shared
        e3: expert 3 @ 1, 2, shared
        m: method @ 2, 1, method
        ga: gate a @ 3, 0.5, a
        gb: gate b @ 3, 1.5, b
        ha: head a @ 4, 0.5, a
        hb: head b @ 4, 1.5, b
        """,
        "x>e1 x>e2 x>e3 e1>m e2>m e3>m m>ga m>gb ga>ha gb>hb",
    ),
    "cgc": drawing(
        "CGC: a task mixes the shared experts with its own",
        """
        x: x @ 0, 1, plain
        s: shared experts @ 1, 1, shared
        m: method @ 2, 1, method
        ea: experts of a @ 2, 0, a
        eb: experts of b @ 2, 2, b
        ga: gate, head a @ 3, 0.5, a
        gb: gate, head b @ 3, 1.5, b
        """,
        "x>s s>m x>ea x>eb m>ga m>gb ea>ga eb>gb",
    ),
    "ple": drawing(
        "PLE: levels of experts; below the last, a shared gate mixes those of all tasks",
        """
        x: x @ 0, 1, plain
        a1: experts of a @ 1, 0, shared
        s1: shared experts @ 1, 1, shared
        b1: experts of b @ 1, 2, shared
        g1: gate a @ 2, 0, shared
        g2: shared gate @ 2, 1, shared
        g3: gate b @ 2, 2, shared
        s2: shared experts @ 3, 1, shared
        m: method @ 4, 1, method
        ha: experts, head a @ 5, 0, a
        hb: experts, head b @ 5, 2, b
        """,
        "x>a1 x>s1 x>b1 a1>g1 s1>g1 a1>g2 s1>g2 b1>g2 s1>g3 b1>g3 g2>s2 s2>m g1>m g3>m m>ha m>hb",
    ),
    "dselect_k": drawing(
        "DSelect-k: each task selects k experts; the entropy of its gate is an auxiliary loss",
        """
        x: x @ 0, 1, plain
        e1: expert 1 @ 1, 0, shared
        e2: expert 2 @ 1, 1, shared
        e3: expert 3 @ 1, 2, shared
        m: method @ 2, 1, method
        ga: select k, a @ 3, 0.5, a
        gb: select k, b @ 3, 1.5, b
        ha: head a @ 4, 0, a
        h: entropy @ 4, 1, plain
        hb: head b @ 4, 2, b
        """,
        "x>e1 x>e2 x>e3 e1>m e2>m e3>m m>ga m>gb ga>ha gb>hb ga>h gb>h",
    ),
    "ltb": drawing(
        "LTB: each node and each task learns which node before it to read",
        """
        x: x @ 0, 0.5, plain
        s: stage 1 @ 1, 0.5, shared
        a1: stage 2, node 0 @ 2, 0, shared
        b1: stage 2, node 1 @ 2, 1, shared
        a2: stage 3, node 0 @ 3, 0, shared
        b2: stage 3, node 1 @ 3, 1, shared
        m: (fork=nodes) @ 4, 0.5, method
        ha: choice, head a @ 5, 0, a
        hb: choice, head b @ 5, 1, b
        """,
        "x>s s>a1 s>b1 a1>a2 a1>b2 b1>a2 b1>b2 a2>m b2>m m>ha m>hb",
    ),
}


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, text in DRAWINGS.items():
        (FOLDER / f"{name}.svg").write_text(text)


if __name__ == "__main__":
    main()
