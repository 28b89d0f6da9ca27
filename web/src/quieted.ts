// What a stranger's document would only try in vain, in a frame that lets nothing run and loads nothing, is taken out
// of it: each try would be a line in the console. Nothing depends on this being complete; the frame and the policy do it.

const SCRIPT = /<script\b[\s\S]*?(?:<\/script\s*>|$)/gi;
const USELESS = /<\/?(?:link|meta|base|iframe|frame|frameset|object|embed|portal)\b(?:"[^"]*"|'[^']*'|[^"'>])*>/gi;
const TAG = /<([a-z][^\s>/]*)((?:"[^"]*"|'[^']*'|[^"'>])*)>/gi;
const ATTRIBUTE = /([^\s"'<>/=]+)(?:\s*=\s*("[^"]*"|'[^']*'|[^\s"'>]+))?/g;
const LOADS = /^(?:src|srcset|href|xlink:href|poster|action|formaction|background|ping|data|manifest)$/i;
const INSIDE = /^["']?\s*(?:data:image\/|#)/i;

/** The document, with its own styles under the page's nonce. */
export function quieted(text: string, nonce: string): string {
  const rules: string[] = [];
  const attributes = (given: string) =>
    given.replace(ATTRIBUTE, (whole: string, name: string, value: string | undefined) => {
      if (/^on/i.test(name) || (LOADS.test(name) && !INSIDE.test(value ?? ""))) return "";
      if (name.toLowerCase() !== "style") return whole;
      // The policy lets no attribute be a style, only elements that have its nonce.
      const rule = (value ?? "").replace(/^["']|["']$/g, "").replace(/&quot;/g, '"').replace(/[{}<]/g, "");
      rules.push(`[data-style="${rules.length}"]{${rule}}`);
      return `data-style="${rules.length - 1}"`;
    });
  const body = text
    .replace(SCRIPT, "")
    .replace(USELESS, "")
    .replace(/@import[^;]*;?/gi, "")
    .replace(/url\((?!\s*["']?(?:data:|#))/gi, "url(#")
    .replace(TAG, (_whole, name: string, given: string) => {
      const own = name.toLowerCase() === "style" ? ` nonce="${nonce}"` : "";
      return `<${name}${own}${attributes(given)}>`;
    });
  const base = "html{background:#fff;color:#000}svg{max-width:100%;height:auto}";
  return `<!doctype html><style nonce="${nonce}">${base}${rules.join("")}</style>${body.replace(/<!doctype[^>]*>/i, "")}`;
}
