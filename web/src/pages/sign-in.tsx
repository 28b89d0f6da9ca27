import { useState } from "preact/hooks";
import { forget, keep } from "../credential";
import { Heading, Problem, Text } from "../parts/ui";

/** Asks for the credential of the tab. Whatever page was asked for is shown after it. */
export function SignIn({ notice, enter }: { notice: string | null; enter: () => Promise<void> }) {
  const [key, setKey] = useState("");
  const [error, setError] = useState<unknown>(null);
  const [busy, setBusy] = useState(false);

  const submit = async (event: Event) => {
    event.preventDefault();
    if (!key.trim()) return setError(new Error("Enter an API key or a token."));
    setBusy(true);
    setError(null);
    keep(key.trim());
    try {
      await enter();
    } catch (refusal) {
      forget();
      setError(refusal);
      setBusy(false);
    }
  };

  return (
    <main class="sign-in">
      <Heading title="Sign in">
        <Wave /> Tidebox
      </Heading>
      <p>Run code in fresh, isolated sandboxes.</p>
      <form onSubmit={submit}>
        <Text
          label="API key"
          type="password"
          value={key}
          onInput={setKey}
          hint="Or a token (JWT). It is kept for this tab only. A server on this machine has its key in the file api-key of its data directory."
        />
        <button type="submit" class="primary" disabled={busy}>
          Sign in
        </button>
      </form>
      <Problem error={error ?? notice} />
    </main>
  );
}

export const Wave = () => (
  <svg class="wave" viewBox="0 0 32 32" aria-hidden="true">
    <path d="M3 13c4-5 8-5 13 0s9 5 13 0M3 21c4-5 8-5 13 0s9 5 13 0" />
  </svg>
);
