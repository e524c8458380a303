"""Railweave's JSON from standard input as rows: label,ranks,bytes,calls,min_us,p50_us,p99_us."""

import json
import sys

document = json.load(sys.stdin)
for row in document["rows"]:
    times = ",".join(f"{row[key]:.3f}" for key in ("min_us", "p50_us", "p99_us"))
    print(f"{document['label']},{document['ranks']},{row['bytes']},{row['iterations']},{times}")
