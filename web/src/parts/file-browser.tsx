// The files of a sandbox: look, upload, download, edit, rename, delete.
import { useEffect, useState } from "preact/hooks";
import { type Entry, type Sandbox } from "../sandbox";
import { bytes, time } from "../text";
import { Code } from "./code";
import { Confirm } from "./confirm";
import { Name, Problem, saveAs } from "./ui";

const ROOT = "/workspace";
const MOST_EDITED = 1024 * 1024;
const KINDS: Record<string, string> = { py: "python", js: "javascript", mjs: "javascript", ts: "typescript", sh: "shell", ex: "elixir", exs: "elixir" };

const join = (directory: string, name: string) => `${directory.replace(/\/$/, "")}/${name}`;

export function FileBrowser({ sandbox }: { sandbox: Sandbox }) {
  const [path, setPath] = useState(ROOT);
  const [entries, setEntries] = useState<Entry[] | null>(null);
  const [error, setError] = useState<unknown>(null);
  const [edited, setEdited] = useState<{ path: string; text: string } | null>(null);
  const [renamed, setRenamed] = useState<{ path: string; name: string } | null>(null);
  const [folder, setFolder] = useState<string | null>(null);
  const [dragged, setDragged] = useState(false);
  const writes = sandbox.may("fs_write");

  const load = async (where = path) => {
    const found = await sandbox.list(where);
    const order = (entry: Entry) => (entry.type === "directory" ? 0 : 1);
    setEntries(found.entries.sort((one, other) => order(one) - order(other) || (one.name < other.name ? -1 : 1)));
  };
  const attempt = async (act: () => Promise<unknown>) => {
    setError(null);
    try {
      await act();
      await load();
    } catch (refusal) {
      setError(refusal);
    }
  };
  useEffect(() => {
    setError(null);
    load(path).catch(setError);
  }, [path]);

  const upload = (files: FileList) =>
    attempt(async () => {
      for (const file of files) {
        await sandbox.request("POST", `files/upload?path=${encodeURIComponent(join(path, file.name))}`, {
          raw: file,
          headers: { "Content-Type": "application/octet-stream" },
        });
      }
    });
  const read = async (entry: Entry) =>
    (await sandbox.request("GET", `files/download?path=${encodeURIComponent(join(path, entry.name))}`)).blob();
  const edit = (entry: Entry) =>
    attempt(async () => {
      if (entry.size > MOST_EDITED) throw new Error("It is too large to be edited here; download it.");
      const content = await (await read(entry)).arrayBuffer();
      let text: string;
      try {
        text = new TextDecoder("utf-8", { fatal: true }).decode(content);
      } catch {
        throw new Error("It is not text; download it.");
      }
      setEdited({ path: join(path, entry.name), text });
    });
  const save = () =>
    attempt(async () => {
      if (!edited) return;
      await sandbox.request("POST", `files/upload?path=${encodeURIComponent(edited.path)}`, {
        raw: edited.text,
        headers: { "Content-Type": "application/octet-stream" },
      });
      setEdited(null);
    });

  if (edited) {
    const kind = KINDS[edited.path.split(".").pop() ?? ""] ?? "";
    return (
      <section aria-label="Editor">
        <div class="toolbar">
          <h2>
            Edit <Name>{edited.path}</Name>
          </h2>
          <span class="space" />
          <button class="primary" onClick={() => void save()}>
            Save
          </button>
          <button onClick={() => setEdited(null)}>Close</button>
        </div>
        <Problem error={error} />
        <Code label="Content" language={kind} value={edited.text} onChange={(text) => setEdited({ ...edited, text })} />
      </section>
    );
  }
  return (
    <section
      aria-label="File browser"
      class={dragged ? "dragged" : ""}
      onDragOver={(event) => {
        event.preventDefault();
        setDragged(writes);
      }}
      onDragLeave={() => setDragged(false)}
      onDrop={(event) => {
        event.preventDefault();
        setDragged(false);
        if (writes && event.dataTransfer?.files.length) void upload(event.dataTransfer.files);
      }}
    >
      <div class="toolbar">
        <h2>Files</h2>
        <Name>{path}</Name>
        <button class="small" disabled={path === "/"} onClick={() => setPath(path.replace(/\/[^/]*$/, "") || "/")}>
          Up
        </button>
        <button class="small" onClick={() => void attempt(async () => {})}>
          Refresh files
        </button>
        <span class="space" />
        {writes && (
          <>
            <label>
              <span class="unseen">Upload files</span>
              <input
                type="file"
                multiple
                aria-label="Upload files"
                onChange={(event) => {
                  const input = event.target as HTMLInputElement;
                  if (input.files?.length) void upload(input.files).then(() => (input.value = ""));
                }}
              />
            </label>
            <button class="small" onClick={() => setFolder("")}>
              New directory
            </button>
            <button class="small" onClick={() => setEdited({ path: join(path, "new.txt"), text: "" })}>
              New file
            </button>
          </>
        )}
      </div>
      {folder !== null && (
        <form
          class="input"
          onSubmit={(event) => {
            event.preventDefault();
            void attempt(() => sandbox.request("POST", "files/mkdir", { body: { path: join(path, folder) } }));
            setFolder(null);
          }}
        >
          <label>
            <span class="unseen">Name of the directory</span>
            <input value={folder} aria-label="Name of the directory" onInput={(event) => setFolder((event.target as HTMLInputElement).value)} />
          </label>
          <button type="submit">Make</button>
        </form>
      )}
      <Problem error={error} />
      <ul class="files" aria-label="Files">
        {entries?.map((entry) => (
          <li key={entry.name}>
            {renamed?.path === entry.name ? (
              <form
                class="input"
                onSubmit={(event) => {
                  event.preventDefault();
                  const body = { source: join(path, entry.name), target: join(path, renamed.name) };
                  void attempt(() => sandbox.request("POST", "files/move", { body }));
                  setRenamed(null);
                }}
              >
                <label>
                  <input
                    aria-label={`New name of ${entry.name}`}
                    value={renamed.name}
                    onInput={(event) => setRenamed({ ...renamed, name: (event.target as HTMLInputElement).value })}
                  />
                </label>
                <button type="submit">Save name</button>
              </form>
            ) : entry.type === "directory" ? (
              <button class="small" aria-label={`Open ${entry.name}`} onClick={() => setPath(join(path, entry.name))}>
                <Name>{`${entry.name}/`}</Name>
              </button>
            ) : (
              <Name>{entry.name}</Name>
            )}
            <span class="quiet">
              {entry.type === "file" ? bytes(entry.size) : entry.type} {time(entry.modified_at)}
            </span>
            <span class="space" />
            {entry.type === "file" && (
              <>
                <button
                  class="small"
                  aria-label={`Download ${entry.name}`}
                  onClick={() => void attempt(async () => saveAs(await read(entry), entry.name))}
                >
                  Download
                </button>
                {writes && (
                  <button class="small" aria-label={`Edit ${entry.name}`} onClick={() => void edit(entry)}>
                    Edit
                  </button>
                )}
              </>
            )}
            {writes && (
              <>
                <button
                  class="small"
                  aria-label={`Rename ${entry.name}`}
                  onClick={() => setRenamed({ path: entry.name, name: entry.name })}
                >
                  Rename
                </button>
                <Confirm
                  small
                  label="Delete"
                  name={entry.name}
                  act={() =>
                    void attempt(() =>
                      sandbox.request("POST", "files/remove", {
                        body: { path: join(path, entry.name), recursive: entry.type === "directory" },
                      }),
                    )
                  }
                />
              </>
            )}
          </li>
        ))}
      </ul>
      {entries?.length === 0 && <p class="quiet">Nothing is here. Drop files here, or make some in the terminal.</p>}
    </section>
  );
}
