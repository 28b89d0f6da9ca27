import { useEffect, useRef, useState } from "preact/hooks";
import { get, post, randomId, SERVICE } from "../api";
import { codeOf, exampleOf, isExample, mainFileOf, programOf, toBase64 } from "../languages";
import type { Page, Run, RunSpec, Server } from "../model";
import { Code } from "../parts/code";
import { Choice, Heading, Name, Problem, Size, Text } from "../parts/ui";
import { navigate, runPath, useLocation } from "../router";
import type { PageProps } from "../shell";
import { keepSpec, takeDraft } from "../specs";

interface InlineFile {
  path: string;
  size: number;
  content_b64: string;
}

interface Form {
  language: string;
  code: string;
  artifacts: string;
  runtime: string;
  image: string;
  session: string;
  python: string;
  node: string;
  env: string;
  labels: string;
  timeout: string;
  memory: string;
  cpu: string;
  pids: string;
  network: string;
  hosts: string;
  trust: string;
  interactive: boolean;
  files: InlineFile[];
}

const MOST_FILE_BYTES = 1024 * 1024;

/** The image that programs run in where nobody names one. */
function imageOf(server: Server, runtime: string): string {
  const images = server.runtimes.find((each) => each.name === (runtime || server.default_runtime))?.default_images ?? [];
  return images[0]?.replace(/@sha256:.*$/, "") ?? "host";
}

export function RunPage({ server }: PageProps) {
  const { search } = useLocation();
  const languages = server.languages;
  const [form, setForm] = useState<Form>(() => {
    const language = languages.includes("python") ? "python" : (languages[0] ?? "python");
    const fresh: Form = {
      language, code: exampleOf(language), artifacts: "", runtime: "", image: "", session: search.get("session") ?? "",
      python: "", node: "", env: "", labels: "", timeout: "", memory: "", cpu: "", pids: "", network: "", hosts: "", trust: "",
      interactive: false, files: [],
    };
    const draft = takeDraft();
    return draft ? { ...fresh, ...formOf(draft) } : fresh;
  });
  const [options, setOptions] = useState(Boolean(form.session));
  const [error, setError] = useState<unknown>(null);
  const [busy, setBusy] = useState(false);
  const [dragged, setDragged] = useState(false);
  const [sessions, setSessions] = useState<string[]>([]);
  const set = (change: Partial<Form>) => setForm((before) => ({ ...before, ...change }));

  useEffect(() => {
    if (!options) return;
    void get<Page<{ session_id: string }>>(`${SERVICE}/sessions?limit=100`).then(
      (found) => setSessions(found.items.map((each) => each.session_id)),
      setError,
    );
  }, [options]);

  const latest = useRef(form);
  latest.current = form;
  const running = useRef(false);
  const run = async () => {
    if (running.current) return;
    running.current = true;
    setBusy(true);
    setError(null);
    try {
      const spec = specOf(latest.current, server);
      const started = await post<Run>(`${SERVICE}/runs`, spec, { "Idempotency-Key": randomId() });
      keepSpec(started.run_id, spec);
      navigate(runPath(started.run_id));
    } catch (refusal) {
      setError(refusal);
      setBusy(false);
    } finally {
      running.current = false;
    }
  };

  const addFiles = async (list: FileList | File[]) => {
    const added: InlineFile[] = [];
    for (const file of list) {
      if (file.size > MOST_FILE_BYTES) {
        setError(new Error(`${file.name}: files of a run have at most 1 MiB in all; put larger ones into a session.`));
        continue;
      }
      const content = new Uint8Array(await file.arrayBuffer());
      added.push({ path: file.webkitRelativePath || file.name, size: file.size, content_b64: toBase64(content) });
    }
    setForm((before) => {
      const kept = before.files.filter((old) => !added.some((each) => each.path === old.path));
      return { ...before, files: [...kept, ...added] };
    });
  };
  const drop = (event: DragEvent) => {
    event.preventDefault();
    setDragged(false);
    if (event.dataTransfer?.files.length) void addFiles(event.dataTransfer.files);
  };

  const changeLanguage = (language: string) => {
    const untouched = isExample(form.code) || !form.code.trim();
    set({ language, ...(untouched ? { code: exampleOf(language) } : {}) });
  };

  if (!server.execution_enabled) {
    return (
      <>
        <Heading title="Run">Run</Heading>
        <Problem error="Execution is turned off on this server." />
      </>
    );
  }
  const runtimes = server.runtimes.filter((each) => each.available).map((each) => each.name);
  const chosen = server.runtimes.find((each) => each.name === (form.runtime || server.default_runtime));
  return (
    <>
      <Heading title="Run">Run code</Heading>
      <form
        class={dragged ? "playground dragged" : "playground"}
        onSubmit={(event) => {
          event.preventDefault();
          void run();
        }}
        onDragOver={(event) => {
          event.preventDefault();
          setDragged(true);
        }}
        onDragLeave={() => setDragged(false)}
        onDrop={drop}
      >
        <div class="row-of-fields">
          <Choice label="Language" value={form.language} options={languages} onChange={changeLanguage} />
          <Text
            label="Artifacts"
            value={form.artifacts}
            onInput={(artifacts) => set({ artifacts })}
            placeholder="*.png, out/**"
            hint="Files to keep: patterns, with commas between them"
          />
          <button
            type="button"
            aria-expanded={options}
            aria-controls="options"
            onClick={() => setOptions(!options)}
          >
            Options
          </button>
          <button type="submit" class="primary" disabled={busy} title="Ctrl+Enter">
            Run
          </button>
        </div>
        <Code label="Code" language={form.language} value={form.code} onChange={(code) => set({ code })} onRun={run} />
        <p class="hint">
          <kbd>Ctrl</kbd>+<kbd>Enter</kbd> starts it. <kbd>Esc</kbd>, then <kbd>Tab</kbd> leaves the editor. Drop files here to
          put them into its workspace.
        </p>
        {form.files.length > 0 && (
          <ul class="files" aria-label="Files">
            {form.files.map((file) => (
              <li key={file.path}>
                <Name>{file.path}</Name> <Size>{file.size}</Size>{" "}
                <button
                  type="button"
                  class="small"
                  aria-label={`Remove ${file.path}`}
                  onClick={() => set({ files: form.files.filter((each) => each !== file) })}
                >
                  Remove
                </button>
              </li>
            ))}
          </ul>
        )}
        <Problem error={error} />
        <fieldset id="options" class="options" hidden={!options}>
          <legend>Options</legend>
          <Choice
            label="Runtime"
            value={form.runtime}
            options={[["", `${server.default_runtime} (default)`], ...runtimes]}
            onChange={(runtime) => set({ runtime })}
          />
          <Text
            label="Image"
            value={form.image}
            onInput={(image) => set({ image })}
            placeholder={imageOf(server, form.runtime)}
            hint={form.session ? "That of the session" : "A name such as python:3.11-slim"}
          />
          <Choice
            label="Session"
            value={form.session}
            options={[["", "none: a fresh workspace"], ...new Set([...sessions, form.session].filter(Boolean))]}
            onChange={(session) => set({ session })}
          />
          <Text label="Python packages" value={form.python} onInput={(python) => set({ python })} placeholder="pandas, rich" />
          <Text label="Node packages" value={form.node} onInput={(node) => set({ node })} placeholder="lodash" />
          <Text label="Timeout" type="number" value={form.timeout} onInput={(timeout) => set({ timeout })} hint="Seconds" />
          <Text
            label="Memory"
            type="number"
            value={form.memory}
            onInput={(memory) => set({ memory })}
            hint={`MiB, at most ${chosen?.max_mem_mb ?? "what the server allows"}`}
          />
          <Text
            label="Processors"
            type="number"
            value={form.cpu}
            onInput={(cpu) => set({ cpu })}
            hint={`At most ${chosen?.max_cpu ?? "what the server allows"}`}
          />
          <Text label="Processes" type="number" value={form.pids} onInput={(pids) => set({ pids })} hint="And threads" />
          <Choice
            label="Network"
            value={form.network}
            options={[["", "as the server says"], ...(chosen?.isolation.network_policies ?? [])]}
            onChange={(network) => set({ network })}
          />
          {form.network === "allowlist" && (
            <Text
              label="Allowed hosts"
              value={form.hosts}
              onInput={(hosts) => set({ hosts })}
              placeholder="api.example.com, *.example.org"
              hint="Without any, all that the server allows"
            />
          )}
          <Choice
            label="Trust"
            value={form.trust}
            options={[["", "standard (default)"], ...server.trust_levels]}
            onChange={(trust) => set({ trust })}
          />
          <Text
            label="Environment"
            rows={3}
            value={form.env}
            onInput={(env) => set({ env })}
            hint="NAME=value, one on a line"
          />
          <Text label="Labels" rows={3} value={form.labels} onInput={(labels) => set({ labels })} hint="name=value, one on a line" />
          <div class="field">
            <label>
              Files <input type="file" multiple onChange={(event) => {
                const input = event.target as HTMLInputElement;
                if (input.files) void addFiles(input.files).then(() => (input.value = ""));
              }} />
            </label>
          </div>
          <div class="field check">
            <label>
              <input
                type="checkbox"
                checked={form.interactive}
                onChange={(event) => set({ interactive: (event.target as HTMLInputElement).checked })}
              />{" "}
              Send input while it runs
            </label>
          </div>
        </fieldset>
      </form>
    </>
  );
}

const listed = (text: string) => text.split(",").map((each) => each.trim()).filter(Boolean);

function pairs(text: string, what: string): Record<string, string> | undefined {
  const found: Record<string, string> = {};
  for (const line of text.split("\n").filter((each) => each.trim())) {
    const at = line.indexOf("=");
    if (at < 1) throw new Error(`${what}: “${line}” is not NAME=value.`);
    found[line.slice(0, at).trim()] = line.slice(at + 1);
  }
  return Object.keys(found).length ? found : undefined;
}

function number(text: string, what: string): number | undefined {
  if (!text.trim()) return undefined;
  const value = Number(text);
  if (!Number.isFinite(value) || value <= 0) throw new Error(`${what} must be a number above 0.`);
  return value;
}

function specOf(form: Form, server: Server): RunSpec {
  const offered = server.runtimes.flatMap((each) => each.languages ?? []).find((each) => each.name === form.language);
  const program = programOf(form.language, form.code, offered?.file);
  const packages: Record<string, string[]> = {};
  if (listed(form.python).length) packages["python"] = listed(form.python);
  if (listed(form.node).length) packages["node"] = listed(form.node);
  const files = [...(program.files ?? []), ...form.files.map(({ path, content_b64 }) => ({ path, content_b64 }))];
  const resources = {
    cpu: number(form.cpu, "Processors"),
    memory_mb: number(form.memory, "Memory"),
    pids: number(form.pids, "Processes"),
  };
  const spec: RunSpec = {
    spec_version: "1.1",
    ...(form.session ? { session_id: form.session } : { base_image: form.image.trim() || (program.language ? "host" : imageOf(server, form.runtime)) }),
    command: program.command,
    language: program.language,
    runtime: form.runtime || undefined,
    packages: Object.keys(packages).length ? packages : undefined,
    env: pairs(form.env, "Environment"),
    labels: pairs(form.labels, "Labels"),
    files: files.length ? files : undefined,
    timeout_sec: number(form.timeout, "Timeout"),
    resources: Object.values(resources).some((each) => each !== undefined) ? resources : undefined,
    network_policy: form.network || undefined,
    egress: form.network === "allowlist" && listed(form.hosts).length ? { hosts: listed(form.hosts) } : undefined,
    trust_level: form.trust || undefined,
    capture_patterns: listed(form.artifacts).length ? listed(form.artifacts) : undefined,
    interactive: form.interactive || undefined,
  };
  // What was left out is not in the text that is copied, either.
  return JSON.parse(JSON.stringify(spec)) as RunSpec;
}

function formOf(spec: RunSpec): Partial<Form> {
  const program = codeOf(spec);
  const lines = (values?: Record<string, string>) =>
    Object.entries(values ?? {}).map(([name, value]) => `${name}=${value}`).join("\n");
  const isMain = (path: string) => path === mainFileOf(spec);
  return {
    ...(program ?? {}),
    artifacts: (spec.capture_patterns ?? []).join(", "),
    runtime: spec.runtime ?? "",
    image: spec.base_image ?? "",
    session: spec.session_id ?? "",
    python: (spec.packages?.["python"] ?? []).join(", "),
    node: (spec.packages?.["node"] ?? []).join(", "),
    env: lines(spec.env),
    labels: lines(spec.labels),
    timeout: spec.timeout_sec?.toString() ?? "",
    memory: spec.resources?.memory_mb?.toString() ?? "",
    cpu: spec.resources?.cpu?.toString() ?? "",
    pids: spec.resources?.pids?.toString() ?? "",
    network: spec.network_policy ?? "",
    hosts: (spec.egress?.hosts ?? []).join(", "),
    trust: spec.trust_level ?? "",
    interactive: spec.interactive ?? false,
    files: (spec.files ?? [])
      .filter((file) => !isMain(file.path))
      .map((file) => ({ ...file, size: Math.floor((file.content_b64.length * 3) / 4) })),
  };
}
