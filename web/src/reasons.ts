// Why a run ended as it did, in a sentence.
import type { Run } from "./model";
import { seconds } from "./text";

const SIGNALS: Record<number, string> = {
  1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL",
  11: "SIGSEGV", 13: "SIGPIPE", 14: "SIGALRM", 15: "SIGTERM", 24: "SIGXCPU", 25: "SIGXFSZ", 31: "SIGSYS",
};

/** The sentence for a run; empty while it goes on. */
export function reasonOf(run: Run): string {
  const limits = run.resource_usage.limits;
  const signal = run.signal === null ? "a signal" : (SIGNALS[run.signal] ?? `signal ${run.signal}`);
  const said = run.message ? ` (${run.message})` : "";
  switch (run.reason_code) {
    case null:
      return run.phase === "queued" ? "It waits for its turn." : "";
    case "exit_code_0":
      return "The program ended by itself, without an error.";
    case "exit_code_nonzero":
      return `The program ended by itself with exit code ${run.exit_code}, which means that it failed.`;
    case "oom_killed":
      return `Out of memory: the program needed more than the ${limits.memory_mb} MiB that it may have, and was killed.`;
    case "execution_timeout":
      return `Timed out: the program was killed after ${duration(limits.timeout_sec)}.`;
    case "startup_timeout":
      return `Timed out: the program could not be started within ${duration(limits.startup_timeout_sec)}.`;
    case "pids_limit_exceeded":
      return `Too many processes: the program failed after it had the ${limits.pids} that it may have.`;
    case "killed_by_signal":
      return run.signal === 31
        ? "Killed by policy: the program made a system call that boxes may not make (SIGSYS)."
        : `The program was ended by ${signal}.`;
    case "policy_denied":
      return `Refused by policy${said}.`;
    case "compile_failed":
      return `The program could not be compiled: see what the compiler says${said}.`;
    case "compile_timeout":
      return "Timed out: compiling the program took too long.";
    case "exec_failed":
      return `The command could not be started: it is not there, or not executable${said}.`;
    case "image_pull_failed":
      return `There is no such image: ${run.base_image}${said}.`;
    case "provision_failed":
      return `What the program needs could not be made ready${said}.`;
    case "runtime_unavailable":
      return `The runtime ${run.runtime} is not available on this server${said}.`;
    case "runtime_error":
      return `The runtime ${run.runtime} failed; the program is not to blame${said}.`;
    case "queue_ttl_expired":
      return "It waited too long for its turn and was given up.";
    case "server_restarted":
      return "The server was restarted while the program ran.";
    case "node_lost":
      return "The server that had this run was lost.";
    case "canceled_by_user":
      return "It was cancelled.";
    case "session_deleted":
      return "Its session was deleted, and the program was killed.";
    case "session_expired":
      return "The time of its session was over, and the program was killed.";
    case "server_shutdown":
      return "The server was stopped, and the program was killed.";
    default:
      return `It ended for the reason ${run.reason_code}${said}.`;
  }
}

const duration = (value: number | null | undefined) => (value ? seconds(value) : "its time");
