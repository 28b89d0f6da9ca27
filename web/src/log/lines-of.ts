/** The lines of an answer, as they come. */
export async function* linesOf(body: ReadableStream<Uint8Array>): AsyncGenerator<string> {
  const decoder = new TextDecoder();
  const reader = body.getReader();
  let begun = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const pieces = (begun + decoder.decode(value, { stream: true })).split("\n");
      begun = pieces.pop()!;
      yield* pieces;
    }
  } finally {
    // Whoever does not want the rest keeps nobody from being asked something else.
    void reader.cancel().catch(() => {});
  }
}
