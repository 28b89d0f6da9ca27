import { useState } from "preact/hooks";
import { ask, get, post, query, randomId, SERVICE } from "../api";
import type { Page } from "../model";
import { Confirm } from "../parts/confirm";
import { Heading, Name, Problem, Snippet, Text, useAsked, useEvery } from "../parts/ui";
import { Link, navigate, sandboxPath, sessionPath } from "../router";
import { type Binding, ensure, SESSIONS } from "../sandbox";
import type { PageProps } from "../shell";
import { seconds, time, until } from "../text";

export interface Session {
  session_id: string;
  state: string;
  base_image: string;
  runtime: string;
  created_at: string;
  expires_at: string;
  labels: Record<string, string>;
}

const listed = (text: string) => text.split(",").map((each) => each.trim()).filter(Boolean);

export function SandboxesPage({ me, server }: PageProps) {
  const [everybody, setEverybody] = useState(false);
  const [problem, setProblem] = useState<unknown>(null);
  const [busy, setBusy] = useState(false);
  const [options, setOptions] = useState(false);
  const [form, setForm] = useState({ name: "", python: "", node: "", image: "" });
  const path = `${SESSIONS}${query({ limit: 200, everybody: everybody || "" })}`;
  const sandboxes = useAsked((signal) => get<Page<Binding>>(path, signal), path);
  const sessions = useAsked((signal) => get<Page<Session>>(`${SERVICE}/sessions?limit=200`, signal), "sessions");
  useEvery(3000, () => {
    sandboxes.reload();
    sessions.reload();
  });

  const attempt = async (act: () => Promise<unknown>) => {
    setProblem(null);
    setBusy(true);
    try {
      await act();
    } catch (refusal) {
      setProblem(refusal);
    }
    setBusy(false);
    sandboxes.reload();
    sessions.reload();
  };
  const packages = () => {
    const wanted: Record<string, string[]> = {};
    if (listed(form.python).length) wanted["python"] = listed(form.python);
    if (listed(form.node).length) wanted["node"] = listed(form.node);
    return Object.keys(wanted).length ? { packages: wanted } : {};
  };
  const make = () =>
    attempt(async () => {
      const made = await ensure({ type: "workspace", id: form.name.trim() || `web-${randomId().slice(0, 8)}` }, packages());
      navigate(sandboxPath(made.binding.id));
    });
  const makeSession = () =>
    attempt(async () => {
      const body = { spec_version: "1.1", ...(form.image.trim() ? { base_image: form.image.trim() } : {}), ...packages() };
      const made = await post<Session>(`${SERVICE}/sessions`, body, { "Idempotency-Key": randomId() });
      navigate(sessionPath(made.session_id));
    });

  const found = sandboxes.value?.items ?? sandboxes.stale?.items ?? [];
  const kept = sessions.value?.items ?? sessions.stale?.items ?? [];
  return (
    <>
      <Heading title="Sandboxes">Sandboxes</Heading>
      <div class="toolbar">
        {server.execution_enabled && (
          <button class="primary" disabled={busy} onClick={() => void make()}>
            New sandbox
          </button>
        )}
        <button disabled={busy} onClick={() => void makeSession()}>
          New session
        </button>
        <button aria-expanded={options} aria-controls="options" onClick={() => setOptions(!options)}>
          Options
        </button>
        <span class="space" />
        {me.admin && (
          <label class="toggle">
            <input type="checkbox" checked={everybody} onChange={(event) => setEverybody((event.target as HTMLInputElement).checked)} />{" "}
            Everybody’s
          </label>
        )}
      </div>
      <fieldset id="options" class="options" hidden={!options}>
        <legend>Options</legend>
        <Text label="Name" value={form.name} onInput={(name) => setForm({ ...form, name })} hint="Of a sandbox; one that is there is opened" />
        <Text label="Python packages" value={form.python} onInput={(python) => setForm({ ...form, python })} placeholder="pandas, rich" />
        <Text label="Node packages" value={form.node} onInput={(node) => setForm({ ...form, node })} />
        <Text label="Image" value={form.image} onInput={(image) => setForm({ ...form, image })} hint="Of a session" />
      </fieldset>
      <Problem error={problem ?? sandboxes.error ?? sessions.error} />
      <p class="quiet">
        A sandbox lives on between programs and has terminals; a session is a workspace whose files several runs share.
      </p>
      <div class="scroll" tabIndex={0} role="group" aria-label="Scrollable table of sandboxes">
        <table aria-label="Sandboxes">
          <thead>
            <tr>
              <th scope="col">Sandbox</th>
              <th scope="col">State</th>
              <th scope="col">Lease</th>
              <th scope="col">Last used</th>
              <th scope="col">Ends at</th>
              <th scope="col">Provider</th>
              <th scope="col">
                <span class="unseen">Actions</span>
              </th>
            </tr>
          </thead>
          <tbody>
            {found.map((binding) => (
              <tr key={binding.id}>
                <td>
                  <Link to={sandboxPath(binding.id)}>
                    <Name>{`${binding.scope.type} ${binding.scope.id}`}</Name>
                  </Link>
                </td>
                <td>{binding.state}</td>
                <td>{until(binding.lease_expires_at)}</td>
                <td>{seconds(Math.round(binding.idle_seconds))} ago</td>
                <td>{time(binding.expires_at)}</td>
                <td>{binding.provider}</td>
                <td>
                  <Confirm
                    small
                    label="Release"
                    name={binding.scope.id}
                    act={() => void attempt(() => ask("DELETE", `${SESSIONS}/${encodeURIComponent(binding.id)}`))}
                  />
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {sandboxes.value?.total === 0 && (
        <div class="empty">
          <p>There are no sandboxes. Make one here, or from a shell:</p>
          <Snippet label="Command that makes a sandbox">
            {`curl -s ${location.origin}${SESSIONS} \\\n  -H "X-API-KEY: $TIDEBOX_API_KEY" -H 'Content-Type: application/json' \\\n  -d '{"thread_id": "my-thread", "mode": "ensure"}'`}
          </Snippet>
        </div>
      )}
      <section aria-label="Sessions of the interpreter service">
        <div class="toolbar">
          <h2>Sessions</h2>
        </div>
        <div class="scroll" tabIndex={0} role="group" aria-label="Scrollable table of sessions">
          <table aria-label="Sessions">
            <thead>
              <tr>
                <th scope="col">Session</th>
                <th scope="col">State</th>
                <th scope="col">Time</th>
                <th scope="col">Image</th>
                <th scope="col">Runtime</th>
                <th scope="col">Made</th>
                <th scope="col">
                  <span class="unseen">Actions</span>
                </th>
              </tr>
            </thead>
            <tbody>
              {kept.map((session) => (
                <tr key={session.session_id}>
                  <td>
                    <Link to={sessionPath(session.session_id)}>{session.session_id}</Link>
                  </td>
                  <td>{session.state}</td>
                  <td>{until(session.expires_at)}</td>
                  <td>
                    <Name>{session.base_image}</Name>
                  </td>
                  <td>{session.runtime}</td>
                  <td>{time(session.created_at)}</td>
                  <td>
                    <Confirm
                      small
                      label="Delete"
                      name={session.session_id}
                      act={() =>
                        void attempt(() => ask("DELETE", `${SERVICE}/sessions/${encodeURIComponent(session.session_id)}`))
                      }
                    />
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
        {sessions.value?.total === 0 && <p class="quiet">There are no sessions.</p>}
      </section>
    </>
  );
}
