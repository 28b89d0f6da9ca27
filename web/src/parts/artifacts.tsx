// The files that a run left: a list, previews, downloads.
import { useEffect, useState } from "preact/hooks";
import { encoded, get, request, SERVICE } from "../api";
import type { Artifact } from "../model";
import { bytes } from "../text";
import { Preview } from "./preview";
import { Name, Problem, saveAs } from "./ui";

interface List {
  items: Artifact[];
  total: number;
  total_bytes: number;
}

export function Artifacts({ runId, over }: { runId: string; over: boolean }) {
  const base = `${SERVICE}/runs/${encodeURIComponent(runId)}/artifacts`;
  const [found, setFound] = useState<List | null>(null);
  const [error, setError] = useState<unknown>(null);
  const [shown, setShown] = useState<Artifact | null>(null);

  useEffect(() => {
    if (over) get<List>(base).then(setFound, setError);
  }, [over, base]);

  const save = (path: string, name: string) =>
    request("GET", path)
      .then((response) => response.blob())
      .then((blob) => saveAs(blob, name))
      .catch(setError);

  if (!over) return null;
  return (
    <section class="artifacts" aria-label="Files it left">
      <div class="toolbar">
        <h2>Artifacts</h2>
        {found && found.items.length > 0 && (
          <>
            <span class="quiet">{bytes(found.total_bytes)}</span>
            <span class="space" />
            <button class="small" onClick={() => void save(`${base}.zip`, `${runId}.zip`)}>
              Save all as zip
            </button>
          </>
        )}
      </div>
      <Problem error={error} />
      {found?.items.length === 0 && (
        <p class="quiet">None. Name the files to keep in “Artifacts” when you run it: patterns such as *.png or out/**.</p>
      )}
      <ul aria-label="Artifacts" class="files">
        {found?.items.map((artifact) => (
          <li key={artifact.path}>
            <Name>{artifact.path}</Name>{" "}
            <span class="quiet">{artifact.is_link ? "link" : bytes(artifact.size)}</span>
            <span class="space" />
            {!artifact.is_link && (
              <>
                <button
                  class="small"
                  aria-label={`Preview ${artifact.path}`}
                  aria-expanded={shown === artifact}
                  onClick={() => setShown(shown === artifact ? null : artifact)}
                >
                  Preview
                </button>{" "}
                <button
                  class="small"
                  aria-label={`Download ${artifact.path}`}
                  onClick={() => void save(`${base}/${encoded(artifact.path)}`, artifact.path)}
                >
                  Download <Name>{artifact.path}</Name>
                </button>
              </>
            )}
            {shown === artifact && <Preview url={`${base}/${encoded(artifact.path)}`} artifact={artifact} />}
          </li>
        ))}
      </ul>
    </section>
  );
}
