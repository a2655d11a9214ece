"""A DHIS2 server for tests: documents in the forms of its Web API, failures when asked for.

Organisation units of three levels (country, districts, facilities), data elements with option
combos, and values by facility and month, made from a seed.
"""

from __future__ import annotations

import base64
import http.server
import json
import random
import string
from collections import Counter, defaultdict
from functools import partial
from typing import Any
from urllib.parse import parse_qs, urlsplit

TOKEN, LOGIN = "d2pat_planted_4711", ("admin", "district-4711")
CASES, TESTED, SENT, HIGH = "CasesMalari", "TestedMalar", "RateMeanOut", "ExceedOutpt"
UNDER, OVER, DEFAULT = "UnderFiveYr", "OverFiveYrs", "DefaultComb"


def _uid(rng: random.Random) -> str:
    return "".join(rng.choice(string.ascii_letters) for _ in range(11))


class Dhis2:
    """What a server knows, and how it answers.

    Attributes
    ----------
    units : dict
        Of an identifier: name, level, path of identifiers, geometry or None.
    stored : dict of (element, period, unit, combo) to str
        Data values.
    failures : list
        For the next requests: a status, "break" (no answer), "cut" (half an answer), "page" (the
        HTML of a login), or None.
    asked : list of (method, path, query)
        Of every request that got through.
    waits : list of float
        Seconds that a client would have waited.
    old : bool
        Whether values are asked for by data set alone, and import summaries come as they are.
    full_units : set of str
        Organisation units whose values a POST refuses.
    """

    def __init__(self, n_district: int = 6, months: tuple[str, ...] = ("202401", "202402")) -> None:
        rng = random.Random(7)
        self.failures: list[Any] = []
        self.asked: list[tuple[str, str, dict[str, list[str]]]] = []
        self.waits: list[float] = []
        self.old = False
        self.full_units: set[str] = set()
        self.units: dict[str, dict[str, Any]] = {}
        self.stored: dict[tuple[str, str, str, str], str] = {}
        root = self._add(rng, "Country", "", None)
        for n in range(n_district):
            west, south = 45 + n % 3, -20 + n // 3
            ring = [[west, south], [west + 1, south], [west + 1, south + 1], [west, south + 1]]
            shape = {"type": "Polygon", "coordinates": [[*ring, ring[0]]]}
            district = self._add(rng, f"District {n}", root, shape)
            for k in range(2):
                point = {"type": "Point", "coordinates": [west + 0.5, south + 0.2 + 0.4 * k]}
                facility = self._add(rng, f"Clinic {n}{k}", district, point)
                for month in months:
                    for element, most in ((CASES, 40), (TESTED, 90)):
                        for combo in (UNDER, OVER):
                            key = element, month, facility, combo
                            self.stored[key] = str(rng.randrange(most))

    def _add(self, rng: random.Random, name: str, parent: str, shape: Any) -> str:
        uid = _uid(rng)
        above = self.units[parent]["path"] if parent else ""
        path = f"{above}/{uid}"
        level = path.count("/")
        self.units[uid] = {"name": name, "level": level, "path": path, "geometry": shape}
        return uid

    def at_level(self, level: int) -> list[str]:
        return [uid for uid, unit in self.units.items() if unit["level"] == level]

    def total(self, element: str, period: str, unit: str, combo: str | None = None) -> float | None:
        """Add up the values below a unit, as analytics do; None where there are none."""
        found = [
            float(value)
            for (e, p, u, c), value in self.stored.items()
            if (e, p) == (element, period)
            and combo in (None, c)
            and unit in self.units[u]["path"].split("/")
        ]
        return sum(found) if found else None

    # -- resources -------------------------------------------------------------------------------

    def get(self, resource: str, query: dict[str, list[str]]) -> tuple[int, Any]:
        name = resource.rpartition(".")[0].replace("/", "_").replace(".", "_")
        found = getattr(self, f"_get_{name}_{resource.rpartition('.')[2]}", None)
        return (404, _message(404, "Not found")) if found is None else found(query)

    def _get_system_info_json(self, _: Any) -> tuple[int, Any]:
        return 200, {"version": "2.41.3", "contextPath": "https://dhis2.example.org"}

    def _get_organisationUnits_json(self, query: dict[str, list[str]]) -> tuple[int, Any]:
        found = self.at_level(int(query["level"][0]))
        page, size = int(query["page"][0]), int(query["pageSize"][0])
        items = [
            {"id": u, "displayName": self.units[u]["name"], "path": self.units[u]["path"]}
            for u in found[(page - 1) * size : page * size]
        ]
        pager = {"page": page, "total": len(found), "pageSize": size,
                 "pageCount": max(1, -(-len(found) // size))}  # fmt: skip
        return 200, {"pager": pager, "organisationUnits": items}

    def _get_organisationUnits_geojson(self, query: dict[str, list[str]]) -> tuple[int, Any]:
        features = []
        for uid in self.at_level(int(query["level"][0])):
            unit, above = self.units[uid], self.units[uid]["path"].split("/")
            inside = not set(query.get("parent", [])) or set(query["parent"]) & set(above)
            if unit["geometry"] is not None and inside:
                about = {"code": f"OU_{uid[:3]}", "name": unit["name"], "level": str(unit["level"]),
                         "parent": above[-2], "parentGraph": "/".join(above[1:-1]),
                         "groups": []}  # fmt: skip
                features.append({"type": "Feature", "id": uid, "geometry": unit["geometry"],
                                 "properties": about})  # fmt: skip
        return 200, {"type": "FeatureCollection", "features": features}

    def _cells(self, query: dict[str, list[str]]) -> list[tuple[str, str, str, float]]:
        given = dict(each.split(":", 1) for each in query["dimension"])
        places = given["ou"].split(";")
        level = next(int(p.removeprefix("LEVEL-")) for p in places if p.startswith("LEVEL-"))
        above = {p for p in places if not p.startswith("LEVEL-")}
        units = [u for u in self.at_level(level)
                 if not above or above & set(self.units[u]["path"].split("/"))]  # fmt: skip
        found = []
        for item in given["dx"].split(";"):
            element, _, combo = item.partition(".")
            for period in given["pe"].split(";"):
                for unit in units:
                    total = self.total(element, period, unit, combo or None)
                    if total is not None:
                        found.append((item, period, unit, total))
        return found

    def _get_analytics_json(self, query: dict[str, list[str]]) -> tuple[int, Any]:
        names = ["dx", "pe", "ou", "value"]
        headers = [{"name": n, "column": n, "meta": n != "value"} for n in names]
        rows = [[item, pe, ou, str(total)] for item, pe, ou, total in self._cells(query)]
        items = {CASES: {"name": "Malaria cases"}, TESTED: {"name": "People tested"}}
        items |= {uid: {"name": unit["name"]} for uid, unit in self.units.items()}
        meta = {"items": items, "dimensions": {}}
        return 200, {"headers": headers, "metaData": meta, "rows": rows, "height": len(rows)}

    def _get_analytics_dataValueSet_json(self, query: dict[str, list[str]]) -> tuple[int, Any]:
        values = []
        for item, period, unit, total in self._cells(query):
            element, _, combo = item.partition(".")
            row = {"dataElement": element, "period": period, "orgUnit": unit, "value": str(total)}
            values.append(row | ({"categoryOptionCombo": combo} if combo else {}))
        return 200, {"dataValues": values}

    def _get_dataValueSets_json(self, query: dict[str, list[str]]) -> tuple[int, Any]:
        if self.old and "dataSet" not in query:
            return 409, _message(409, "At least one data set must be specified", "E2001")
        elements = set(query.get("dataElement", [CASES, TESTED, SENT, HIGH]))
        values = [
            {"dataElement": e, "period": p, "orgUnit": u, "categoryOptionCombo": c,
             "attributeOptionCombo": DEFAULT, "value": value, "followup": False}
            for (e, p, u, c), value in self.stored.items()
            if e in elements and p in query["period"] and u in query["orgUnit"]
        ]  # fmt: skip
        return 200, {"dataValues": values} if values else {}

    def post(self, resource: str, query: dict[str, list[str]], body: Any) -> tuple[int, Any]:
        if resource != "dataValueSets" or query["importStrategy"] != ["CREATE_AND_UPDATE"]:
            return 404, _message(404, "Not found")
        count: Counter[str] = Counter()
        wrong: dict[tuple[str, str], list[int]] = defaultdict(list)
        for n, row in enumerate(body["dataValues"]):
            key = (row["dataElement"], row["period"], row["orgUnit"],
                   row.get("categoryOptionCombo", DEFAULT))  # fmt: skip
            if key[0] not in (CASES, TESTED, SENT, HIGH):
                wrong["E8103", f"data element not found: `{key[0]}`"].append(n)
            elif key[2] not in self.units or key[2] in self.full_units:
                wrong["E8022", f"Data set not usable with org unit(s): `{key[2]}`"].append(n)
            else:
                before = self.stored.get(key)
                count["updated" if before is not None else "imported"] += 1
                if query["dryRun"] == ["false"]:
                    self.stored[key] = row["value"]
        n_wrong = sum(map(len, wrong.values()))
        conflicts = [
            {"object": text[-12:-1], "value": text, "errorCode": code, "indexes": indexes}
            for (code, text), indexes in wrong.items()
        ]
        status = "SUCCESS" if not wrong else "WARNING" if count else "ERROR"
        summary = {
            "responseType": "ImportSummary", "status": status,
            "importCount": {"imported": count["imported"], "updated": count["updated"],
                            "ignored": n_wrong, "deleted": 0},
            "conflicts": conflicts, "dataSetComplete": "false",
        }  # fmt: skip
        code = 409 if status == "ERROR" else 200
        if self.old:
            return 200, summary
        return code, {**_message(code, "See the import summary"), "response": summary}


def _message(status: int, text: str, code: str = "") -> dict[str, Any]:
    found = {"httpStatusCode": status, "status": "OK" if status < 400 else "ERROR", "message": text}
    return found | ({"errorCode": code} if code else {})


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers requests as a :class:`Dhis2` says."""

    def __init__(self, *args: Any, dhis2: Dhis2) -> None:
        self.dhis2 = dhis2
        super().__init__(*args)

    def _answer(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(size)) if size else None
        failure = self.dhis2.failures.pop(0) if self.dhis2.failures else None
        if failure == "break":
            return
        parts = urlsplit(self.path)
        resource, query = parts.path.removeprefix("/api/"), parse_qs(parts.query)
        basic = base64.b64encode(":".join(LOGIN).encode()).decode()
        known = (f"ApiToken {TOKEN}", f"Basic {basic}")
        if isinstance(failure, int):
            status, value = failure, _message(failure, "for a while")
        elif self.headers.get("Authorization") not in known:
            status, value = 401, _message(401, "Unauthorized", "E1006")
        else:
            self.dhis2.asked.append((self.command, resource, query))
            find = self.dhis2.get if self.command == "GET" else self.dhis2.post
            given = (resource, query) if self.command == "GET" else (resource, query, body)
            status, value = find(*given)
        text = b"<html>" if failure == "page" else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        if status == 429:
            self.send_header("Retry-After", "7")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text[: len(text) // 2] if failure == "cut" else text)

    do_GET = do_POST = _answer

    def log_message(self, *_: Any) -> None:
        pass


def serve(dhis2: Dhis2) -> http.server.ThreadingHTTPServer:
    """Return a server on loopback, for :func:`tests.servers.running`."""
    return http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, dhis2=dhis2))
