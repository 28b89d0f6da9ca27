import { useState } from "preact/hooks";
import { ask, encoded, get, request, SERVICE } from "../api";
import type { Page, Run } from "../model";
import { Confirm } from "../parts/confirm";
import { Heading, Name, Problem, saveAs, useAsked, useEvery } from "../parts/ui";
import { Link, navigate, runPath } from "../router";
import type { PageProps } from "../shell";
import { bytes, time, until } from "../text";
import type { Session } from "./sandboxes";

interface WorkspaceFile {
  path: string;
  size: number;
  modified_at: string;
  download_url: string | null;
}

export function OneSessionPage({ id }: PageProps) {
  const path = `${SERVICE}/sessions/${encodeURIComponent(id)}`;
  const session = useAsked((signal) => get<Session>(path, signal), path);
  const files = useAsked((signal) => get<{ items: WorkspaceFile[]; truncated: boolean }>(`${path}/files`, signal), `${path}/files`);
  const runs = useAsked(
    (signal) => get<Page<Run>>(`${SERVICE}/runs?limit=20&session_id=${encodeURIComponent(id)}`, signal),
    `${path}/runs`,
  );
  const [problem, setProblem] = useState<unknown>(null);
  useEvery(3000, () => {
    runs.reload();
    files.reload();
  }, session.value !== null);

  const attempt = async (act: () => Promise<unknown>) => {
    setProblem(null);
    try {
      await act();
      files.reload();
    } catch (refusal) {
      setProblem(refusal);
    }
  };
  const upload = (chosen: FileList) =>
    attempt(async () => {
      const form = new FormData();
      for (const file of chosen) form.append("file", file, file.name);
      await request("POST", `${path}/files?expand=false`, { raw: form });
    });

  return (
    <>
      <Heading title="Session">
        Session <Name>{id}</Name>
      </Heading>
      <Problem error={problem ?? session.error} />
      {session.value && (
        <>
          <div class="headline">
            <p role="status" aria-label="Status" class="status">
              {session.value.state}
            </p>
            <span class="quiet">
              <Name>{session.value.base_image}</Name> on {session.value.runtime}, {until(session.value.expires_at)}
            </span>
            <span class="space" />
            <Link to={`?session=${encodeURIComponent(id)}`} class="button">
              Use it for a program
            </Link>
            <Confirm label="Delete" act={() => void ask("DELETE", path).then(() => navigate("sandboxes"), setProblem)} />
          </div>
          <section aria-label="Workspace">
            <div class="toolbar">
              <h2>Files</h2>
              <span class="space" />
              <input
                type="file"
                multiple
                aria-label="Upload files"
                onChange={(event) => {
                  const input = event.target as HTMLInputElement;
                  if (input.files?.length) void upload(input.files).then(() => (input.value = ""));
                }}
              />
            </div>
            <Problem error={files.error} />
            <ul class="files" aria-label="Files">
              {(files.value ?? files.stale)?.items.map((file) => (
                <li key={file.path}>
                  <Name>{file.path}</Name> <span class="quiet">{bytes(file.size)}</span> <span class="space" />
                  {file.download_url && (
                    <button
                      class="small"
                      aria-label={`Download ${file.path}`}
                      onClick={() =>
                        void attempt(async () =>
                          saveAs(await (await request("GET", `${path}/files/${encoded(file.path)}`)).blob(), file.path),
                        )
                      }
                    >
                      Download
                    </button>
                  )}
                </li>
              ))}
            </ul>
            {files.value?.items.length === 0 && <p class="quiet">There are no files yet.</p>}
            {files.value?.truncated && <p class="quiet">There are more files than are shown.</p>}
          </section>
          <section aria-label="What ran in it">
            <h2>Runs in it</h2>
            <ul class="files">
              {(runs.value ?? runs.stale)?.items.map((run) => (
                <li key={run.run_id}>
                  <Link to={runPath(run.run_id)}>{run.run_id}</Link> <span class={`phase ${run.phase}`}>{run.phase}</span>{" "}
                  <span class="quiet">{time(run.created_at)}</span>
                </li>
              ))}
            </ul>
            {runs.value?.total === 0 && <p class="quiet">Nothing has run in it yet.</p>}
          </section>
        </>
      )}
    </>
  );
}
