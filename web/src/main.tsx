import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import { get, SERVICE } from "./api";
import { credential, onForgotten } from "./credential";
import type { Me, Server } from "./model";
import { Shell } from "./shell";
import { SignIn } from "./pages/sign-in";
import { explained } from "./parts/ui";
import "./style.css";

function App() {
  const [known, setKnown] = useState<{ me: Me; server: Server } | null>(null);
  const [notice, setNotice] = useState<string | null>(null);
  const [asking, setAsking] = useState(credential() !== null);

  const enter = async () => {
    const [me, server] = await Promise.all([get<Me>(`${SERVICE}/me`), get<Server>(`${SERVICE}/runtimes`)]);
    setNotice(null);
    setKnown({ me, server });
  };

  useEffect(
    () =>
      onForgotten((reason) => {
        setKnown(null);
        setNotice(reason);
      }),
    [],
  );
  useEffect(() => {
    if (!credential()) return;
    enter()
      .catch((error) => setNotice(explained(error)))
      .finally(() => setAsking(false));
  }, []);

  if (known) return <Shell me={known.me} server={known.server} />;
  if (asking) return null;
  return <SignIn notice={notice} enter={enter} />;
}

render(<App />, document.getElementById("app")!);
