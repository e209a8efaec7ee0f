// Draws no oftener than the screen does, and for no more than a tenth of the time.

const REST = 9;  // times as long as the last drawing took

/**
 * What is drawn may cost more the longer it is: the pauses grow with it, so that all drawings of an answer together take
 * a bounded share of the time in which it came, however long it is.
 */
export class FrameLoop {
  #draw;
  #notBeforeMs = 0;
  #isAsked = false;

  constructor(draw) {
    this.#draw = draw;
  }

  /** Soon. */
  ask() {
    if (this.#isAsked) return;
    this.#isAsked = true;
    const frame = () => requestAnimationFrame(() => this.#isAsked && this.now());
    const waitMs = this.#notBeforeMs - performance.now();
    if (waitMs > 0) setTimeout(frame, waitMs);
    else frame();
  }

  now() {
    this.#isAsked = false;
    const startedMs = performance.now();
    this.#draw();
    const endedMs = performance.now();
    this.#notBeforeMs = endedMs + REST * (endedMs - startedMs);
  }
}
