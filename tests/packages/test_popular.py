"""Popular packages of the public index, each doing something real in a box.

``make test-packages`` tries all of them, and ``make test`` a handful.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.boxes import BoxRunner, start_runner, stop_runner
from tidebox.embedded import run_on
from tidebox.model.result import Result

PROGRAMS = {
    "numpy": "import numpy as np; a = np.arange(12.0).reshape(3, 4); print((a @ a.T).trace())",
    "pandas": (
        "import pandas as pd; d = pd.DataFrame({'k': list('aab'), 'v': [1, 2, 3]})\n"
        "print(d.groupby('k').v.sum().to_dict())"
    ),
    "matplotlib": (
        "import matplotlib; matplotlib.use('Agg'); import matplotlib.pyplot as plt, os\n"
        "plt.plot([1, 3, 2]); plt.savefig('plot.png'); print(open('plot.png', 'rb').read(4)[1:])"
    ),
    "scipy": "from scipy import optimize; print(round(optimize.brentq(lambda x: x * x - 2, 0, 2), 6))",
    "scikit-learn": (
        "from sklearn.linear_model import LinearRegression as L\n"
        "print(round(float(L().fit([[0], [1], [2]], [1, 3, 5]).predict([[3]])[0]), 3))"
    ),
    "pillow": "from PIL import Image; i = Image.new('RGB', (8, 4), 'red').rotate(90, expand=True); print(i.size)",
    "requests": (
        "import requests, threading, http.server as h\n"
        "class H(h.BaseHTTPRequestHandler):\n"
        "    def do_GET(self): self.send_response(200); self.end_headers(); self.wfile.write(b'tide')\n"
        "    def log_message(self, *a): pass\n"
        "s = h.HTTPServer(('127.0.0.1', 0), H); threading.Thread(target=s.serve_forever, daemon=True).start()\n"
        "print(requests.get(f'http://127.0.0.1:{s.server_port}').text)"
    ),
    "httpx": (
        "import httpx; t = httpx.MockTransport(lambda r: httpx.Response(200, json={'p': r.url.path}))\n"
        "print(httpx.Client(transport=t).get('http://x/tide').json()['p'])"
    ),
    "beautifulsoup4": "from bs4 import BeautifulSoup as B; print(B('<p>a<b>tide</b></p>', 'html.parser').b.text)",
    "lxml": "from lxml import etree; print(etree.fromstring('<a><b c=\"7\"/></a>').xpath('//b/@c'))",
    "openpyxl": (
        "import openpyxl as o; w = o.Workbook(); w.active['A1'] = 42; w.save('x.xlsx')\n"
        "print(o.load_workbook('x.xlsx').active['A1'].value)"
    ),
    "sympy": "import sympy as s; x = s.Symbol('x'); print(s.integrate(2 * x, x))",
    "networkx": "import networkx as n; g = n.path_graph(5); print(n.shortest_path(g, 0, 4))",
    "polars": "import polars as p; print(p.DataFrame({'a': [1, 2, 3]}).select(p.col('a').sum()).item())",
    "pyarrow": (
        "import pyarrow as a, pyarrow.parquet as q; q.write_table(a.table({'x': [1, 2]}), 't.parquet')\n"
        "print(q.read_table('t.parquet').num_rows)"
    ),
    "duckdb": "import duckdb; print(duckdb.sql('select sum(range) from range(10)').fetchall()[0][0])",
    "pydantic": (
        "import pydantic as p\nclass M(p.BaseModel):\n    x: int\nprint(M(x='7').x)\n"
        "try:\n    M(x='a')\nexcept p.ValidationError as e:\n    print(e.error_count())"
    ),
    "pytest": (
        "import subprocess, sys; open('test_x.py', 'w').write('def test_x(): assert 1 + 1 == 2')\n"
        "print('1 passed' in subprocess.run(['pytest', '-q'], capture_output=True, text=True).stdout)"
    ),
    "sqlalchemy": (
        "import sqlalchemy as s; e = s.create_engine('sqlite://')\n"
        "with e.connect() as c: print(c.execute(s.text('select 6 * 7')).scalar())"
    ),
    "jinja2": "import jinja2; print(jinja2.Template('{% for x in y %}{{ x }};{% endfor %}').render(y=[1, 2]))",
    "pyyaml": "import yaml; print(yaml.safe_load('a: [1, {b: c}]'))",
    "rich": (
        "from rich.console import Console as C; from rich.table import Table as T\n"
        "t = T(); t.add_column('tide'); t.add_row('high'); C(width=20).print(t)"
    ),
    "shapely": "from shapely.geometry import Point; print(round(Point(0, 0).buffer(1).area, 2))",
    "statsmodels": (
        "import numpy as n, statsmodels.api as s; x = n.arange(5.0)\n"
        "print([round(float(v), 3) for v in s.OLS(2 * x + 1, s.add_constant(x)).fit().params])"
    ),
    "tabulate": "from tabulate import tabulate; print(tabulate([[1, 2]], headers=['a', 'b']))",
}
EXPECTED = {
    "numpy": "506.0",
    "pandas": "{'a': 3, 'b': 3}",
    "matplotlib": "b'PNG'",
    "scipy": "1.414214",
    "scikit-learn": "7.0",
    "pillow": "(4, 8)",
    "requests": "tide",
    "httpx": "/tide",
    "beautifulsoup4": "tide",
    "lxml": "['7']",
    "openpyxl": "42",
    "sympy": "x**2",
    "networkx": "[0, 1, 2, 3, 4]",
    "polars": "6",
    "pyarrow": "2",
    "duckdb": "45",
    "pydantic": "7\n1",
    "pytest": "True",
    "sqlalchemy": "42",
    "jinja2": "1;2;",
    "pyyaml": "{'a': [1, {'b': 'c'}]}",
    "shapely": "3.14",
    "statsmodels": "[1.0, 2.0]",
}
HANDFUL = ("tabulate", "pyyaml", "jinja2", "pillow", "requests")
CHOSEN = sorted(PROGRAMS) if os.environ.get("TIDEBOX_TEST_ALL_PACKAGES") else sorted(HANDFUL)


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BoxRunner]:
    data_dir: Path = tmp_path_factory.mktemp("popular")
    found = start_runner(data_dir, pool_blank=0, pool_python=0, pool_node=0)
    yield found
    stop_runner(found)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", CHOSEN)
def test_a_popular_package_does_something_real(runner: BoxRunner, name: str) -> None:
    # A variable that is read when an interpreter starts lets no other than a fresh one run the program.
    for env in ({}, {"PYTHONHASHSEED": "0"}):
        running = run_on(
            runner.engine, PROGRAMS[name], packages=[name], env=env, memory=2 << 30, timeout=60.0, workspace=256 << 20
        )
        # The first one waits until the package is there.
        done: Result = runner.submit(running).result(timeout=550)
        assert (done.exit_code, done.stderr) == (0, b""), done.stderr.decode()
        assert EXPECTED.get(name, "") in done.stdout.decode().strip()
        assert done.stdout.strip()
