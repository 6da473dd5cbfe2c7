"""A page in headless Chromium: a script looks at it, and what it saw comes back."""

import html
import json
import re
import shutil
import subprocess

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_browser = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium here; on Debian: apt-get install chromium"
)
LIGHT, DARK = ("--blink-settings=preferredColorScheme=1",), ("--blink-settings=preferredColorScheme=0",)

TRAP = """<script>window.errors = [];
window.addEventListener("error", e => window.errors.push(String(e.message)));
document.addEventListener("securitypolicyviolation", e => window.errors.push(e.blockedURI));
for (const name of ["error", "warn"]) {
  console[name] = (...words) => window.errors.push(words.join(" "));
}</script>"""
PROBE = """<script>window.addEventListener("load", function () {
  const seen = {};
  const wait = () => new Promise(done => setTimeout(done, 100));
  (async function () {
    await wait();
    for (let tries = 0; document.getElementById("library") && !window.Plotly && tries < 50; tries++) {
      await wait();
    }
    await wait();
    %s
    seen.overflow = document.documentElement.scrollWidth - document.documentElement.clientWidth;
    seen.errors = window.errors;
    document.body.setAttribute("data-seen", JSON.stringify(seen));
  })().catch(error => document.body.setAttribute("data-seen", JSON.stringify({errors: [String(error)]})));
});</script>"""


def look(tmp_path, text, script, *flags):
    """Run ``script`` in the page; it fills ``seen``, which is returned with what the console logged."""
    page = tmp_path / "page.html"
    # the page's own scripts contain the tag too
    body, end = text.rsplit("</body>", 1)
    page.write_text(
        body.replace("<head>", "<head>" + TRAP, 1) + PROBE % script + "</body>" + end, "utf-8"
    )
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    command += ["--disable-quic", "--no-first-run", "--disable-background-networking"]
    command += ["--disable-component-update", "--disable-sync"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=10000", *flags]
    done = subprocess.run(
        [*command, "--enable-logging=stderr", "--dump-dom", page.as_uri()],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    found = re.search(r'data-seen="(.*?)"', done.stdout)
    assert found, done.stdout[-500:] + done.stderr[-500:]
    console = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
    return json.loads(html.unescape(found.group(1))), console
