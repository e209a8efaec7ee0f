// The column of turns. It follows its end until the reader goes up, and again once the reader is back at the end.

const NEAR_END_PX = 40;

export class TalkView {
  #box;
  #list;
  #toEnd;
  #isFollowing = true;
  #lastTop = 0;

  /** box: what scrolls; list: what holds the turns; toEnd: the button, shown to a reader who has gone up. */
  constructor(box, list, toEnd) {
    this.#box = box;
    this.#list = list;
    this.#toEnd = toEnd;
    box.addEventListener("scroll", () => this.#noteScroll());
    toEnd.onclick = () => this.follow();
    new ResizeObserver(() => this.keepUp()).observe(box);
  }

  add(element) {
    this.#list.append(element);
    this.keepUp();
  }

  /** Keeps the first `num` turns. */
  cut(num) {
    while (this.#list.children.length > num) this.#list.lastChild.remove();
  }

  /** To the end, and stay there. */
  follow() {
    this.#isFollowing = true;
    this.keepUp();
  }

  /** After each change of a turn. Whether to follow was settled before it: by then the end has moved away. */
  keepUp() {
    if (this.#isFollowing) this.#box.scrollTop = this.#box.scrollHeight;
    this.#toEnd.hidden = this.#isFollowing;
  }

  /** Only a reader goes up: what grows moves the end, not the top. */
  #noteScroll() {
    const { scrollTop, scrollHeight, clientHeight } = this.#box;
    if (scrollHeight - scrollTop - clientHeight < NEAR_END_PX) this.#isFollowing = true;
    else if (scrollTop < this.#lastTop) this.#isFollowing = false;
    this.#lastTop = scrollTop;
    this.#toEnd.hidden = this.#isFollowing;
  }
}
