"""Hook of the guide: formulas are MathML, which browsers show without scripts or a network."""

import re
from html import unescape
from typing import Any

from latex2mathml.converter import convert

# What pymdownx.arithmatex leaves of $TeX$ and $$TeX$$.
_FORMULA = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\\[(\[](?P<tex>.*?)\\[)\]]</(?P=tag)>', re.DOTALL
)


def on_page_content(html: str, **_: Any) -> str:
    r"""Return the content of a page with its formulas as MathML.

    >>> on_page_content(r'<span class="arithmatex">\(x &lt; 1\)</span>').count("<mo>&#x0003C;</mo>")
    1
    """
    return _FORMULA.sub(_as_mathml, html)


def _as_mathml(found: re.Match[str]) -> str:
    tex = unescape(found["tex"]).strip()
    if found["tag"] == "span":
        return convert(tex)
    # The theme lets a reader scroll a wide formula; the scroll bar takes some height.
    formula = convert(tex, display="block")
    return f'<div class="arithmatex" style="overflow-y: hidden; padding: .6em 0">{formula}</div>'
