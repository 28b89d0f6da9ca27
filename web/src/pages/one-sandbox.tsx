import { useEffect, useState } from "preact/hooks";
import { ApiError, ask, get, post } from "../api";
import { Confirm } from "../parts/confirm";
import { FileBrowser } from "../parts/file-browser";
import { Processes } from "../parts/processes";
import { Terminals } from "../parts/terminals";
import { Heading, Name, Problem, useEvery } from "../parts/ui";
import { navigate } from "../router";
import { type Binding, open, type Sandbox, SESSIONS } from "../sandbox";
import type { PageProps } from "../shell";
import { seconds, until } from "../text";

export function OneSandboxPage({ id }: PageProps) {
  const path = `${SESSIONS}/${encodeURIComponent(id)}`;
  const [sandbox, setSandbox] = useState<Sandbox | null>(null);
  const [binding, setBinding] = useState<Binding | null>(null);
  const [error, setError] = useState<unknown>(null);
  const [turn, setTurn] = useState(0);

  useEffect(() => {
    open(id).then(
      (found) => {
        setSandbox(found);
        setBinding(found.binding);
      },
      (refusal: unknown) => {
        setError(refusal);
        // Whoever may not use it may still see it, and end it.
        if (refusal instanceof ApiError && refusal.status === 403) {
          get<{ binding: Binding }>(path).then((found) => setBinding(found.binding), setError);
        }
      },
    );
  }, [id]);
  useEvery(5000, () => void get<{ binding: Binding }>(path).then((found) => setBinding(found.binding), setError), binding !== null);
  // Somebody looks at it: it is needed.
  useEvery(60_000, () => void post(`${path}/heartbeat`, {}).catch(setError), sandbox !== null);

  const release = () => ask("DELETE", path).then(() => navigate("sandboxes"), setError);
  const elsewhere = sandbox?.elsewhere;
  return (
    <>
      <Heading title="Sandbox">
        Sandbox <Name>{binding?.scope.id ?? id}</Name>
      </Heading>
      <Problem error={error} />
      {binding && (
        <div class="headline">
          <p role="status" aria-label="Status" class="status">
            {binding.state}
          </p>
          <span class="quiet">
            {binding.sandbox_id ?? "no sandbox yet"}, lease {until(binding.lease_expires_at)}, used{" "}
            {seconds(Math.round(binding.idle_seconds))} ago
          </span>
          <span class="space" />
          <Confirm label="Release" act={() => void release()} />
        </div>
      )}
      {sandbox?.recreated && <p class="note">The sandbox was lost and made anew: it is empty.</p>}
      {elsewhere && <p class="note">This sandbox is used at another server: {elsewhere}.</p>}
      {sandbox && !elsewhere && (
        <>
          {sandbox.may("shell") && <Terminals sandbox={sandbox} onChange={() => setTurn((before) => before + 1)} />}
          {sandbox.may("fs_read") && <FileBrowser sandbox={sandbox} />}
          {sandbox.may("exec") && <Processes sandbox={sandbox} turn={turn} />}
        </>
      )}
    </>
  );
}
