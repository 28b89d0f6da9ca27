// What runs in a sandbox, as its own /proc tells it.
import { useEffect, useState } from "preact/hooks";
import type { Sandbox } from "../sandbox";
import { Confirm } from "./confirm";
import { Name, Problem } from "./ui";

interface Process {
  pid: number;
  state: string;
  command: string;
}

// No image need have `ps`; every one that has a shell can do this.
const LIST = `for d in /proc/[0-9]*; do
  [ -r "$d/stat" ] || continue
  p=\${d#/proc/}; [ "$p" = $$ ] && continue
  s=$(cut -d')' -f2 "$d/stat" 2>/dev/null | cut -c2); c=$(tr '\\0\\n' '  ' < "$d/cmdline" 2>/dev/null)
  [ -n "$c" ] && printf '%s\\t%s\\t%s\\n' "$p" "$s" "$c"
done; true`;

const STATES: Record<string, string> = { R: "running", S: "sleeping", D: "waiting", Z: "ended", T: "stopped", I: "idle" };

/** `turn` is another number whenever something was started or ended here. */
export function Processes({ sandbox, turn }: { sandbox: Sandbox; turn: number }) {
  const [found, setFound] = useState<Process[] | null>(null);
  const [error, setError] = useState<unknown>(null);

  const load = async () => {
    setError(null);
    try {
      const listed = await sandbox.exec(["sh", "-c", LIST]);
      const lines = listed.stdout.split("\n").filter(Boolean);
      setFound(
        lines.map((line) => {
          const [pid, state, ...command] = line.split("\t");
          return { pid: Number(pid), state: STATES[state ?? ""] ?? state ?? "", command: command.join(" ").trim() };
        }),
      );
    } catch (refusal) {
      setError(refusal);
    }
  };
  useEffect(() => void load(), [turn]);
  const kill = async (pid: number) => {
    await sandbox.exec(["sh", "-c", `kill -TERM ${pid}`]).catch(setError);
    await load();
  };

  return (
    <section aria-label="What runs in it">
      <div class="toolbar">
        <h2>Processes</h2>
        <button class="small" onClick={() => void load()}>
          Refresh processes
        </button>
      </div>
      <Problem error={error} />
      <div class="scroll" tabIndex={0} role="group" aria-label="Scrollable table of processes">
        <table aria-label="Processes">
          <thead>
            <tr>
              <th scope="col">Process</th>
              <th scope="col">State</th>
              <th scope="col">Command</th>
              <th scope="col">
                <span class="unseen">Actions</span>
              </th>
            </tr>
          </thead>
          <tbody>
            {found?.map((process) => (
              <tr key={process.pid}>
                <td>{process.pid}</td>
                <td>{process.state}</td>
                <td class="long">
                  <Name>{process.command}</Name>
                </td>
                <td>{process.pid !== 1 && <Confirm small label="End" name={String(process.pid)} act={() => void kill(process.pid)} />}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {found?.length === 0 && <p class="quiet">Nothing runs in it.</p>}
    </section>
  );
}
