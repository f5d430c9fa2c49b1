// Prints the links that most accounts share: node links.ts http://127.0.0.1:8080 window=24h limit=10
//
// Node 22.18 and newer run it as it is; for others, `tsc links.ts` makes JavaScript of it. The parameters are those of
// GET /api/v1/trending.

declare const process: { argv: string[]; exitCode: number };

interface Link {
  url: string;
  title?: string;
  sharers: number;
}

/** Returns a page of the ranking. An error has the server's own words. */
async function ranking(server: string, parameters: string[]): Promise<Link[]> {
  const query = new URLSearchParams(parameters.map((p) => p.split(/=(.*)/s).slice(0, 2) as [string, string]));
  let response: Response;
  try {
    response = await fetch(new URL("/api/v1/trending?" + query, server), { signal: AbortSignal.timeout(10_000) });
  } catch (failed) {
    throw new Error(`${server} does not respond: ${failed}`);
  }
  const page: { links?: Link[]; error?: string } = await response.json().catch(() => ({}));
  if (response.ok && page.links) return page.links;
  const wait = response.headers.get("Retry-After");
  const message = page.error ?? `${server} is no server of Weir: status ${response.status}`;
  throw new Error(wait ? `${message} (in ${wait} s)` : message);
}

/** Returns a stranger's text on one line, without what a terminal would obey. */
function line(text: string): string {
  return text.replace(/[\p{C}\p{Zl}\p{Zp}]/gu, " ");
}

async function main(server = "http://127.0.0.1:8080", ...parameters: string[]): Promise<void> {
  const links = await ranking(server, parameters);
  links.forEach((link, i) => console.log([i + 1, link.sharers, line(link.title ?? ""), line(link.url)].join("\t")));
}

main(...process.argv.slice(2)).catch((failed: Error) => {
  console.error(failed.message);
  process.exitCode = 1;
});
