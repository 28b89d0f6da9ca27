// A button for what cannot be taken back: it asks once more, in its own place.
import { useState } from "preact/hooks";

export function Confirm({ label, name, act, small = false }: { label: string; name?: string; act: () => void; small?: boolean }) {
  const [asking, setAsking] = useState(false);
  const kind = small ? "small " : "";
  if (!asking) {
    return (
      <button type="button" class={`${kind}danger`} aria-label={name && `${label} ${name}`} onClick={() => setAsking(true)}>
        {label}
      </button>
    );
  }
  return (
    <span class="confirm">
      <button
        type="button"
        class={`${kind}danger`}
        ref={(button) => button?.focus()}
        onClick={() => {
          setAsking(false);
          act();
        }}
      >
        Yes, {label.toLowerCase()}
      </button>{" "}
      <button type="button" class={kind} onClick={() => setAsking(false)}>
        No
      </button>
    </span>
  );
}
