"""How the pages look.

Owns: the one style sheet. Never: markup.
"""

from __future__ import annotations

import hashlib
from typing import Final, NamedTuple

_TEXT: Final = """\
:root { --text: #1b1f24; --soft: #59636e; --line: #d8dee4; --back: #fff; --raised: #f6f8fa; --link: #0a58ca;
  --good: #116329; --bad: #b3261e; --busy: #0550ae; --odd: #8a4600; color-scheme: light dark; }
@media (prefers-color-scheme: dark) { :root { --text: #e6edf3; --soft: #9198a1; --line: #3d444d; --back: #0d1117;
  --raised: #151b23; --link: #6cb0ff; --good: #5fd07a; --bad: #ff8f87; --busy: #79b8ff; --odd: #e3b341; } }
* { box-sizing: border-box; }
body { margin: 0; font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back); }
header { display: flex; gap: 1rem; align-items: center; padding: .6rem 1.2rem; border-bottom: 1px solid var(--line); }
.brand { font-weight: 700; text-decoration: none; } .namespace { color: var(--soft); } .aside { margin-left: auto; }
main { max-width: 84rem; margin: 0 auto; padding: 1rem 1.2rem 4rem; }
h1 { font-size: 1.35rem; overflow-wrap: anywhere; } h2 { font-size: 1.05rem; margin: 1.8rem 0 .5rem; }
a { color: var(--link); } a:focus-visible, input:focus-visible, select:focus-visible, button:focus-visible,
summary:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }
form.filter { display: flex; flex-wrap: wrap; gap: .6rem .8rem; align-items: end; margin: 0 0 1rem; }
label { display: grid; gap: .15rem; font-size: .85rem; color: var(--soft); }
input, select, button { font: inherit; color: var(--text); background: var(--back); border: 1px solid var(--line);
  border-radius: 6px; padding: .3rem .55rem; }
button { background: var(--raised); cursor: pointer; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 8px; }
table { border-collapse: collapse; width: 100%; } th, td { padding: .4rem .7rem; text-align: left;
  vertical-align: top; } th { font-size: .8rem; color: var(--soft); background: var(--raised); font-weight: 600; }
tr + tr td { border-top: 1px solid var(--line); } td { overflow-wrap: anywhere; }
.status { font-weight: 600; } .good { color: var(--good); } .bad { color: var(--bad); } .busy { color: var(--busy); }
.odd { color: var(--odd); } .soft { color: var(--soft); } .empty { color: var(--soft); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .25rem 1.2rem; margin: 0; } dt { color: var(--soft); }
dd { margin: 0; overflow-wrap: anywhere; }
ul.waiting { margin: 0; padding: .6rem .9rem .6rem 1.9rem; background: var(--raised); border: 1px solid var(--line);
  border-radius: 8px; }
pre { margin: .3rem 0; padding: .6rem .8rem; background: var(--raised); border: 1px solid var(--line);
  border-radius: 8px; overflow-x: auto; font-size: .85rem; white-space: pre-wrap; overflow-wrap: anywhere; }
code, .mono { font-family: ui-monospace, monospace; font-size: .88em; }
nav { display: flex; gap: 1rem; margin: .5rem 0; }
.error { border-left: 4px solid var(--bad); padding: .4rem .9rem; background: var(--raised); }
@media (max-width: 40rem) { dl { grid-template-columns: 1fr; } dd { margin-bottom: .4rem; } }
"""


class Style(NamedTuple):
    """The sheet, and what names this version of it."""

    text: str
    digest: str


STYLE: Final = Style(_TEXT, hashlib.blake2b(_TEXT.encode(), digest_size=6).hexdigest())
