/** What a style element needs so that the page's policy lets it be. */
export const nonce = (): string => document.querySelector<HTMLMetaElement>("meta[property=csp-nonce]")?.nonce ?? "";
