r"""Docstrings for the terminal: formulas as characters, ``G_k^\top`` as G_kᵀ; no markup."""

from __future__ import annotations

import re
import textwrap

_SYMBOLS = {
    "alpha": "α", "beta": "β", "gamma": "γ", "delta": "δ", "epsilon": "ε", "varepsilon": "ε", "eta": "η",
    "theta": "θ", "kappa": "κ", "lambda": "λ", "mu": "μ", "nu": "ν", "xi": "ξ", "pi": "π", "rho": "ρ",
    "sigma": "σ", "tau": "τ", "phi": "φ", "varphi": "φ", "chi": "χ", "psi": "ψ", "omega": "ω",
    "Gamma": "Γ", "Delta": "Δ", "Theta": "Θ", "Lambda": "Λ", "Xi": "Ξ", "Pi": "Π", "Sigma": "Σ",
    "Phi": "Φ", "Psi": "Ψ", "Omega": "Ω", "sum": "Σ", "prod": "Π", "nabla": "∇", "partial": "∂",
    "infty": "∞", "ell": "ℓ", "langle": "⟨", "rangle": "⟩", "|": "‖", "cdot": "·", "circ": "∘",
    "top": "ᵀ", "dots": "…", "ldots": "…", "cdots": "…", "star": "*", "{": "{", "}": "}",
}  # fmt: skip
_RELATIONS = {
    "le": "≤", "leq": "≤", "ge": "≥", "geq": "≥", "ne": "≠", "neq": "≠", "approx": "≈", "sim": "~",
    "propto": "∝", "leftarrow": "←", "to": "→", "rightarrow": "→", "in": "∈", "times": "×", "odot": "⊙",
    "pm": "±", "mid": "|",
}  # fmt: skip
_SPACES = {",": " ", " ": " ", ";": " ", ":": " ", "!": "", "quad": "   ", "qquad": "   ", "\\": "\n"}
_DROPPED = {"left", "right", "Big", "big", "bigg", "Bigg", "displaystyle", "limits"}
_WRAPPERS = {"text", "mathbf", "mathrm", "mathtt", "mathcal", "mathbb", "operatorname", "boldsymbol"}
_ACCENTS = {"tilde": "\u0303", "hat": "\u0302", "bar": "\u0304", "widetilde": "\u0303"}
_RAISED = str.maketrans("0123456789+-T*ᵀ", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ᵀ*ᵀ")
_LOWERED = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")
_TOKEN = re.compile(r"\\(?:[A-Za-z]+|.)|[{}^_]|\s+|.", re.DOTALL)


def plain_formula(source: str) -> str:
    """A formula of LaTeX in characters; what it does not know is shown by its name."""
    text = _Reader(source.strip()).read()
    text = re.sub(r"(?<=\w) (?=[_^])", "", text)  # min_k, which is a function with a subscript
    text = re.sub(r"(?<=[⟨(\[]) +| +(?=[⟩)\]])|(?<=log|exp|cos|max|min) (?=\()", "", text)
    return re.sub(r" {4,}", "   ", re.sub(r"(?<=\S)  (?=\S)", " ", text)).strip()


class _Reader:
    """Reads tokens from left to right."""

    def __init__(self, source: str) -> None:
        self.tokens: list[str] = _TOKEN.findall(source)
        self.place = 0

    def read(self, until: str = "") -> str:
        """Everything up to the token ``until``, or the end."""
        pieces: list[str] = []
        while self.place < len(self.tokens):
            token = self._next()
            if token == until:
                break
            pieces.append(self._piece(token))
        return "".join(pieces)

    def _next(self) -> str:
        self.place += 1
        return self.tokens[self.place - 1]

    def _argument(self) -> str:
        """A group in braces, or one token."""
        while self.place < len(self.tokens) and self.tokens[self.place].isspace():
            self.place += 1
        return self._piece(self._next()) if self.place < len(self.tokens) else ""

    def _piece(self, token: str) -> str:
        if token == "{":
            return self.read("}")
        if token == "^":
            return _script(self._argument(), "^", _RAISED)
        if token == "_":
            return _script(self._argument(), "_", _LOWERED)
        if token.startswith("\\"):
            return self._command(token[1:])
        return " " if token.isspace() else "" if token == "&" else token

    def _command(self, name: str) -> str:
        if name in ("frac", "tfrac", "dfrac"):
            return f"{_grouped(self._argument())}/{_grouped(self._argument())}"
        if name == "sqrt":
            return f"√{_grouped(self._argument())}"
        if name in _ACCENTS:
            letter = self._argument()
            return letter[:1] + _ACCENTS[name] + letter[1:]
        if name in _WRAPPERS:
            return self._argument()
        if name in _RELATIONS:
            return f" {_RELATIONS[name]} "
        if name in _DROPPED:
            return ""
        # what is left is a function, such as log
        return _SYMBOLS.get(name) or _SPACES.get(name, f"{name} ")


def _grouped(text: str) -> str:
    return text if re.fullmatch(r"[^\s+\-/]+", text) or _is_bracketed(text) else f"({text.strip()})"


def _is_bracketed(text: str) -> bool:
    return re.fullmatch(r"\([^()]*\)|‖[^‖]*‖|⟨[^⟨⟩]*⟩", text) is not None


def _script(text: str, sign: str, small: dict[int, int]) -> str:
    text = text.strip()
    if text and all(ord(character) in small for character in text):
        return text.translate(small)
    return f"{sign}{text}" if re.fullmatch(r"[^\W_]+", text) else f"{sign}({text})"


def plain_docstring(text: str, width: int) -> str:
    """A docstring in reStructuredText as paragraphs of plain text, wrapped to ``width``."""
    blocks = re.split(r"\n\s*\n", text.strip("\n"))
    return "\n\n".join(_block(block, width) for block in blocks if block.strip())


def _block(block: str, width: int) -> str:
    display = re.match(r"\s*\.\. math::(.*)", block, re.DOTALL)
    if display:
        lines = plain_formula(" ".join(display.group(1).split())).splitlines()
        return "\n".join(
            textwrap.fill(line.strip(), width, initial_indent=" " * 4, subsequent_indent=" " * 8)
            for line in lines
        )
    if re.match(r"\s*=+ +=+", block):
        return _table(block, width)
    pieces = re.split(r"\n(?=\s*[-*] )", block)  # items of a list stay apart
    return "\n".join(textwrap.fill(plain_text(piece), width) for piece in pieces)


def _table(block: str, width: int) -> str:
    """A table of two columns, without its rules, which say where the second one begins."""
    lines = textwrap.dedent(block).splitlines()
    second = [match.start() for match in re.finditer("=+", lines[0])][1]
    rows = [line for line in lines if not line.startswith("=")]
    cells = [(plain_text(line[:second]), plain_text(line[second:])) for line in rows]
    first = max(len(name) for name, _ in cells) + 2
    return "\n".join(
        textwrap.fill(
            text, width, initial_indent=f"    {name:<{first}}", subsequent_indent=" " * (4 + first)
        )
        for name, text in cells
    )


def plain_text(text: str) -> str:
    """Text without markup."""
    text = re.sub(r":math:`([^`]*)`", lambda m: plain_formula(m.group(1)), " ".join(text.split()))
    text = re.sub(r":\w+:`~(?:\w+\.)*(\w+)`", r"\1", text)
    text = re.sub(r":\w+:`([^`<]+?)(?: <[^>]*>)?`", r"\1", text)
    return re.sub(r"``([^`]*)``", r"\1", text)
