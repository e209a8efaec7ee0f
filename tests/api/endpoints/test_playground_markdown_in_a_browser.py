"""How the playground shows Markdown: streamed as whole, harmless whatever a model writes, in linear time."""

from __future__ import annotations

import json

from tests.api.endpoints.conftest import Visit

VIEW = """
const { MarkdownView } = await import("/playground/markdown.js");
const shown = async (pieces, isAll = true) => {
  const element = document.createElement("div"), view = new MarkdownView(element);
  for (const piece of pieces) view.append(piece);
  if (isAll) view.finish();
  await new Promise((done) => setTimeout(done, 20));  // colours may come later
  return element;
};
"""


def in_page(body: str) -> str:
    return f"(async () => {{ {VIEW} {body} }})()"


DOCUMENTS = {
    "lists": "Intro\n\n1. one\n\n2. two\n   - deep\n\n     more\n\n3. three\n\n- other\n*lazy*\n- a\n\n-- none\n\nEnd",
    "headings": "# One\nText\n\nSetext\n===\n\n## Two\n***\n---\nText\n---\n",
    "table": "Before\n| a | b |\n|:--|--:|\n| 1 | `x|y` |\n| 2 | **z** |\n\nAfter\n\n| not | a table\n\nEnd",
    "code": "Text\n```python\ndef f():\n\n    return '```'\n```\n\n    indented\n\n~~~\n```\n~~~\n\nEnd",
    "open code": "Text\n\n- item\n\n  ```js\n  let x;\n  ```\n\n```js\nnever closed\n\n- x\n\n# no heading",
    "html": "<div>\n\n*a*\n\n</div>\n\n<!-- a\n\nb\n\nc -->\n\n<pre>\n\nx\n\ny</pre>\n\nEnd",
    "links": "A [link][1] and [another].\n\nText.\n\nMore.\n\n[1]: https://a.example/1\n\n[another]: https://a.example/2\n",
    "quotes": "> a\nlazy\n\n> b\n>\n> - c\n\nText\\\nbroken  \nlines\n\n**never closed\n\nEnd",
    "nothing": "\n\n  \n",
}
ENDS_CHANGE = {"links", "html"}
"""Of these: a link is defined at the end, a comment closed."""


def test_streamed_it_is_what_it_is_whole(visit: Visit) -> None:
    """In pieces of one, two and seven characters; before its end is known, too, unless that changes its beginning."""
    with visit() as page:
        for name, document in DOCUMENTS.items():
            whole, *streamed = page.value(
                in_page(f"""
                const text = {json.dumps(document)}, html = [];
                await shown(["```js\\nlet x;\\n```"]);  // the highlighter is here from now on
                for (const size of [text.length, 1, 2, 7])
                  for (const isAll of [true, {json.dumps(name in ENDS_CHANGE)}])
                    html.push((await shown(text.match(new RegExp(`[^]{{1,${{size}}}}`, "g")), isAll)).innerHTML);
                return html;
            """)
            )
            assert streamed == [whole] * 7, name


HOSTILE = [
    "<img src=x onerror=alert(1)>",
    "<script>alert(1)</script>\n\n<style>*{display:none}</style>",
    "![track](https://elsewhere.example/pixel.png?secret)",
    "[click](javascript:alert(1)) [data](data:text/html,x) [file](file:///etc/passwd) [vb](VbScript:x)",
    "<a href='javascript:alert(1)' style='position:fixed' id='send' class='main'>x</a>",
    '[x](https://a.example"onmouseover="alert(1))',
    '```"><img src=x onerror=alert(1)>\ncode\n```',
    "```html\n<img src=x onerror=alert(1)></code></pre><script>alert(1)</script>\n```",
    "<svg><use href='https://elsewhere.example/x#y'/></svg><math><mtext></mtext></math>",
    "<iframe src=https://elsewhere.example></iframe><form action=https://elsewhere.example><button>x</button></form>",
    "| <img src=x onerror=alert(1)> |\n|---|\n| <b>x</b> |",
    "&lt;img src=x onerror=alert(1)&gt; &#x3c;script&#x3e;",
]
ALLOWED = "P BR HR H3 H4 H5 H6 UL OL LI BLOCKQUOTE PRE CODE EM STRONG DEL A TABLE THEAD TBODY TR TH TD".split()
OURS = ["DIV", "SPAN", "BUTTON"]


def test_whatever_a_model_writes_is_text(visit: Visit) -> None:
    with visit() as page:
        for text in HOSTILE:
            found = page.value(
                in_page(f"""
                const element = await shown([{json.dumps(text)}]);
                document.querySelector("#turns").append(element);
                await new Promise((done) => setTimeout(done, 50));
                const all = [...element.querySelectorAll("*")];
                return {{
                  tags: all.map((each) => each.tagName),
                  attributes: all.flatMap((each) => [...each.attributes].map(({{ name }}) => name)),
                  links: all.flatMap((each) => each.href || []),
                  text: element.innerText,
                }};
            """)
            )
            assert set(found["tags"]) <= {*ALLOWED, *OURS}, text
            assert set(found["attributes"]) <= {*"href target rel class type title tabindex role aria-label".split()}
            assert all(link.startswith("https://") for link in found["links"]), text
            assert "<" not in text or "<" in found["text"], "markup is shown as it was written"


def test_code_is_coloured_in_the_languages_that_are_known(visit: Visit) -> None:
    with visit() as page:
        classes = page.value(
            in_page("""
            const element = await shown(["```py\\ndef f(): pass\\n```\\n\\n```nonsense\\ndef f(): pass\\n```"]);
            await new Promise((done) => setTimeout(done, 500));
            return [...element.querySelectorAll("code")].map((code) => code.querySelectorAll(".hljs-keyword").length);
        """)
        )
        assert classes == [2, 0]


TIMES = """
const paragraph = "Some **words** of an `answer`, [linked](https://a.example) and\\n- listed\\n- twice\\n\\n";
const block = "```py\\nprint(1)\\n```\\n\\n";
const secondsFor = (count) => {
  const element = document.createElement("div"), view = new MarkdownView(element);
  const pieces = (paragraph + block).repeat(count).match(/[^]{1,5}/g);
  const startedMs = performance.now();
  for (const piece of pieces) view.append(piece);
  view.finish();
  return (performance.now() - startedMs) / 1000;
};
secondsFor(2);
return [secondsFor(15), secondsFor(60), secondsFor(15), secondsFor(60)];
"""


def test_an_answer_four_times_as_long_takes_about_four_times_as_long(visit: Visit) -> None:
    """Drawn at every token. 16 would be quadratic; a busy machine can slow an attempt, but not make all linear."""
    with visit() as page:
        growths = []
        while len(growths) < 5 and (not growths or growths[-1] >= 9):
            small, large, small_again, large_again = page.value(in_page(TIMES))
            growths.append(min(large, large_again) / min(small, small_again))
        assert min(growths) < 9, growths


def test_drawing_takes_a_tenth_of_the_time_however_long_it_takes(visit: Visit) -> None:
    """One block may be as long as the answer: then the drawings are fewer."""
    with visit() as page:
        num_drawn = page.value(
            """(async () => {
              const { FrameLoop } = await import("/playground/frame_loop.js");
              let numDrawn = 0;
              const frames = new FrameLoop(() => {
                numDrawn++;
                for (const startedMs = performance.now(); performance.now() < startedMs + 20;);
              });
              for (const startedMs = performance.now(); performance.now() < startedMs + 1500;) {
                frames.ask();
                await new Promise((done) => setTimeout(done, 1));
              }
              return numDrawn;
            })()"""
        )
        assert 1 < num_drawn <= 1500 / 200 + 1
