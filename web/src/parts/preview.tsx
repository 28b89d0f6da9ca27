// Shows what is in a file that a program left. What a browser would act on is shown where it can do nothing.
import { useEffect, useState } from "preact/hooks";
import { request } from "../api";
import type { Artifact } from "../model";
import { nonce } from "../nonce";
import { quieted } from "../quieted";
import { bytes, count } from "../text";
import { Problem } from "./ui";

const MOST_TEXT = 512 * 1024;
const MOST_MEDIA = 16 * 1024 * 1024;
const MOST_ROWS = 500;

type Shown =
  | { kind: "text"; text: string; cut: boolean }
  | { kind: "table"; rows: string[][]; more: boolean }
  | { kind: "image" | "frame"; url: string }
  | { kind: "nothing"; why: string };

export function Preview({ url, artifact }: { url: string; artifact: Artifact }) {
  const [shown, setShown] = useState<Shown | null>(null);
  const [error, setError] = useState<unknown>(null);

  useEffect(() => {
    let made: string | null = null;
    let gone = false;
    load(url, artifact).then((found) => {
      if ("url" in found) made = found.url;
      if (gone && made) URL.revokeObjectURL(made);
      else setShown(found);
    }, setError);
    return () => {
      gone = true;
      if (made) URL.revokeObjectURL(made);
    };
  }, [url]);

  return (
    <div class="preview" role="group" aria-label={`Preview of ${artifact.path}`}>
      <Problem error={error} />
      {shown && <Content shown={shown} artifact={artifact} />}
    </div>
  );
}

function Content({ shown, artifact }: { shown: Shown; artifact: Artifact }) {
  switch (shown.kind) {
    case "image":
      return <img src={shown.url} alt={artifact.path} />;
    case "frame":
      // No scripts, no forms, no links out, and an origin that is nobody's.
      return <iframe sandbox="" src={shown.url} title={artifact.path} referrerpolicy="no-referrer" />;
    case "table":
      return (
        <div class="scroll" tabIndex={0} role="region" aria-label={`Rows of ${artifact.path}`}>
          <table>
            <thead>
              <tr>{shown.rows[0]?.map((cell, at) => <th key={at} scope="col">{cell}</th>)}</tr>
            </thead>
            <tbody>
              {shown.rows.slice(1).map((row, number) => (
                <tr key={number}>{row.map((cell, at) => <td key={at}>{cell}</td>)}</tr>
              ))}
            </tbody>
          </table>
          {shown.more && <p class="quiet">The first {count(MOST_ROWS, "row")}; download it for the others.</p>}
        </div>
      );
    case "text":
      return (
        <>
          <pre role="group" tabIndex={0} aria-label={`Content of ${artifact.path}`}>{shown.text}</pre>
          {shown.cut && <p class="quiet">The first {bytes(MOST_TEXT)}; download it for the rest.</p>}
        </>
      );
    case "nothing":
      return <p class="quiet">{shown.why}</p>;
  }
}

async function load(url: string, artifact: Artifact): Promise<Shown> {
  const type = artifact.content_type.split(";")[0]!.trim();
  const name = artifact.path.toLowerCase();
  if (/^image\/(png|jpeg|gif|webp|avif|bmp)$/.test(type)) {
    if (artifact.size > MOST_MEDIA) return { kind: "nothing", why: "It is too large to be shown here; download it." };
    const content = await (await request("GET", url)).arrayBuffer();
    return { kind: "image", url: URL.createObjectURL(new Blob([content], { type })) };
  }
  const content = new Uint8Array(await (await request("GET", url, ranged(artifact.size))).arrayBuffer());
  const cut = artifact.size > content.length;
  let text: string;
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(content, { stream: cut });
  } catch {
    return { kind: "nothing", why: "It is not text; download it." };
  }
  if (text.includes("\0")) return { kind: "nothing", why: "It is not text; download it." };
  if (/\.(html?|xhtml|svg)$/.test(name) || /^(text\/html|image\/svg\+xml|application\/xhtml\+xml)$/.test(type)) {
    return cut ? { kind: "text", text, cut } : { kind: "frame", url: frame(quieted(text, nonce())) };
  }
  if (type === "text/csv" || /\.(csv|tsv)$/.test(name)) {
    const rows = parseRows(text, name.endsWith(".tsv") ? "\t" : ",");
    return { kind: "table", rows: rows.slice(0, MOST_ROWS), more: cut || rows.length > MOST_ROWS };
  }
  if ((type === "application/json" || name.endsWith(".json")) && !cut) {
    try {
      return { kind: "text", text: JSON.stringify(JSON.parse(text), null, 2), cut };
    } catch {
      // Not JSON after all: then it is text.
    }
  }
  return { kind: "text", text, cut };
}

const ranged = (size: number) => (size > MOST_TEXT ? { headers: { Range: `bytes=0-${MOST_TEXT - 1}` } } : {});

const frame = (text: string) => URL.createObjectURL(new Blob([text], { type: "text/html;charset=utf-8" }));

/** Rows of comma-separated values (RFC 4180). */
export function parseRows(text: string, comma: string): string[][] {
  const rows: string[][] = [];
  let row: string[] = [];
  let cell = "";
  let quoted = false;
  for (let at = 0; at < text.length && rows.length <= MOST_ROWS; at += 1) {
    const char = text[at]!;
    if (quoted) {
      if (char !== '"') cell += char;
      else if (text[at + 1] === '"') {
        cell += '"';
        at += 1;
      } else quoted = false;
    } else if (char === '"' && !cell) quoted = true;
    else if (char === comma) {
      row.push(cell);
      cell = "";
    } else if (char === "\n") {
      rows.push([...row, cell.replace(/\r$/, "")]);
      row = [];
      cell = "";
    } else cell += char;
  }
  if (cell || row.length) rows.push([...row, cell]);
  return rows;
}
