"""Prints the links that most accounts share: python3 links.py http://127.0.0.1:8080 window=24h limit=10

It needs Python 3.9 and nothing else. The parameters are those of GET /api/v1/trending.
"""

import json
import sys
import urllib.error
import urllib.request
from urllib.parse import urlencode


def ranking(server, parameters):
    """Returns a page of the ranking. An error has the server's own words."""
    address = server.rstrip("/") + "/api/v1/trending?" + urlencode(parameters)
    try:
        with urllib.request.urlopen(address, timeout=10) as response:
            return json.load(response)
    except urllib.error.HTTPError as failed:
        try:
            message = json.load(failed)["error"]
        except (ValueError, KeyError, TypeError):
            message = f"{server} is no server of Weir: status {failed.code}"
        wait = failed.headers.get("Retry-After")
        raise SystemExit(f"{message} (in {wait} s)" if wait else message) from None
    except (OSError, ValueError) as failed:
        raise SystemExit(f"{server} does not respond: {failed}") from None


def line(text):
    """Returns a stranger's text on one line, without what a terminal would obey."""
    return "".join(c if c.isprintable() else " " for c in text)


def main(server="http://127.0.0.1:8080", *parameters):
    page = ranking(server, [p.partition("=")[::2] for p in parameters])
    for rank, link in enumerate(page["links"], start=1):
        print(rank, link["sharers"], line(link.get("title", "")), line(link["url"]), sep="\t")


if __name__ == "__main__":
    main(*sys.argv[1:])
