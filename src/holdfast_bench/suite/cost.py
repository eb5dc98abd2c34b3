"""Cost: what a job costs by the speeds in stored results; nothing is measured again."""

from __future__ import annotations

from holdfast.errors import JobError
from holdfast_bench.qlora.cost import bill
from holdfast_bench.qlora.rows import Order, Row, columns_of, priced, recommendation_row
from holdfast_bench.results.result import Result
from holdfast_bench.suite.catalogue import BY_NAME


def priced_again(result: Result, order: Order) -> Result:
    """A result with the time and cost of a job in each row of a speed.

    Args:
        result: Of `holdfast bench qlora`, or of a benchmark that measures samples per second, on
            one host unless its rows say more.
        order: The job.

    Raises:
        JobError: It has no such speed.
    """
    if result.benchmark == "qlora":
        of_hosts = [row for row in result.rows if row["measure"] == "hosts"]
        about = next(row for row in result.rows if row["measure"] == "model")
        rows, advice = priced(of_hosts, about, order)
        return result.model_copy(update={"rows": (*rows, recommendation_row(order, advice))})
    known = BY_NAME.get(result.benchmark)
    if known is None or "samples_per_s" not in known.measured:
        raise JobError(
            f"results of {result.benchmark} have no samples per second; pass those of holdfast "
            "bench qlora or scaling"
        )
    rows = [
        {**{key: row[key] for key in known.keys if key in row}, **_bill_of_speed(row, order)}
        for row in result.rows
    ]
    return result.model_copy(update={"rows": tuple(rows)})


def _bill_of_speed(measured: Row, order: Order) -> Row:
    """Columns of the bill of the hosts, and whether it is within the limits of the order."""
    job_s = order.samples / measured["samples_per_s"]["median"]
    found = bill(measured.get("hosts", 1), job_s, order.samples, order.price)
    row = {"samples_per_s": measured["samples_per_s"], **columns_of(found)}
    if order.deadline_h is not None:
        row["in_time"] = found.hours <= order.deadline_h
    if order.budget is not None:
        row["in_budget"] = found.cost <= order.budget
    return row
