"""What a run buys, or would buy: lines for people, and plain values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bansong.translation import gettext, gettext_noop, ngettext

if TYPE_CHECKING:
    from bansong.run.accounting import LookupPlan
    from bansong.run.engine import Agreement, Purchase, QuotaStatus


def lookups_as_dict(plan: LookupPlan, purchase: Purchase | None) -> dict[str, object]:
    """The lookups of a run as plain values for JSON: planned and bought, with what was left of the quota."""
    stood = {"before": purchase.before, "after": purchase.after} if purchase else dict.fromkeys(("before", "after"))
    return {
        "lookups": {
            "planned": plan.lookups,
            "paid": purchase.paid if purchase else 0,
            "cached": purchase.cached if purchase else 0,
            "saved": plan.duplicates,
        },
        "plan": plan.as_dict(),
        "quota": {when: quota.remaining if quota else None for when, quota in stood.items()},
        "purchase": purchase.as_dict() if purchase else None,
    }


def quote_lines(purchase: Purchase, sure: int) -> list[tuple[str, str]]:
    """What would be bought, for people; ``sure``: lookups that the local engine answers for good (hybrid)."""
    found = [] if purchase.before is None else [(gettext("quota left"), _render_quota(purchase.before))]
    missing = ngettext(
        "{chosen:,} of {count:,} missing lookup",
        "{chosen:,} of {count:,} missing lookups",
        purchase.wanted,
        chosen=purchase.chosen,
    )
    return [*found, (gettext("would buy"), _render_lookups(missing, purchase, sure))]


def purchase_lines(purchase: Purchase, sure: int) -> list[tuple[str, str]]:
    """What was bought, for people: only what there is to say; ``sure`` as for a quote."""
    chosen = ngettext(
        "{paid:,} of {count:,} chosen lookup",
        "{paid:,} of {count:,} chosen lookups",
        purchase.chosen,
        paid=purchase.paid,
    )
    found = [(gettext("paid"), _render_lookups(chosen, purchase, sure, purchase.wanted - purchase.chosen))]
    if purchase.before is not None:
        left = gettext(
            "{before} before, {after} after",
            before=_render_quota(purchase.before),
            after=_render_quota(purchase.after),
        )
        found.append((gettext("quota left"), left))
    if doubts := _render_doubts(purchase):
        found.append((gettext("in doubt"), doubts))
    if purchase.requests:
        found.append((gettext("requests"), _render_requests(purchase)))
    if purchase.agreement is not None and purchase.agreement.rows:
        found.append((gettext("agreement"), _render_agreement(purchase.agreement)))
    if purchase.paused:
        found.append((gettext("paused"), purchase.paused))
    made = gettext("{path}, made by this run", path=purchase.ledger) if purchase.ledger_created else purchase.ledger
    found.append((gettext("ledger"), made))
    return found


def _render_doubts(purchase: Purchase) -> str:
    own, found = purchase.doubts, purchase.doubts_found
    parts = [
        ngettext("{count:,} request of this run", "{count:,} requests of this run", own) if own else "",
        ngettext("{count:,} request of one that was killed", "{count:,} requests of one that was killed", found)
        if found
        else "",
    ]
    return ", ".join(filter(None, parts))


def _render_requests(purchase: Purchase) -> str:
    counts = {"requests": purchase.requests, "retries": purchase.retries}
    if purchase.rate:
        return gettext("{requests:,}, {rate:,.1f}/s, {retries:,} sent again", rate=purchase.rate, **counts)
    return gettext("{requests:,}, {retries:,} sent again", **counts)


def _render_lookups(bought: str, purchase: Purchase, sure: int, left_out: int = 0) -> str:
    """What is bought, and what becomes of the other lookups: all in all they are the distinct ones."""
    parts = {
        gettext_noop("{count:,} beyond budget or quota"): left_out,
        gettext_noop("{count:,} in the ledger"): purchase.cached,
        gettext_noop("{count:,} in uploads of earlier runs"): purchase.running,
        gettext_noop("{count:,} held back"): purchase.held,
        gettext_noop("{count:,} certain without"): sure,
    }
    return ", ".join([bought, *(gettext(what, count=count) for what, count in parts.items() if count)])


def _render_quota(quota: QuotaStatus | None) -> str:
    if quota is None or quota.remaining is None:
        return gettext("unknown")
    if quota.limit is None:
        return f"{quota.remaining:,}"
    return gettext("{left:,} of {limit:,}", left=quota.remaining, limit=quota.limit)


def _render_agreement(agreement: Agreement) -> str:
    parts = []
    if agreement.status_known:
        same = gettext(
            "same status in {same:,} of {known:,} known to both",
            same=agreement.status_same,
            known=agreement.status_known,
        )
        parts.append(same)
    parts.append(gettext("same action in {count:,}", count=agreement.action_same))
    if agreement.prob_apart is not None:
        parts.append(gettext("probabilities {apart:.2f} apart", apart=agreement.prob_apart))
    return ngettext(
        "of {count:,} row that both answered: {parts}",
        "of {count:,} rows that both answered: {parts}",
        agreement.rows,
        parts=", ".join(parts),
    )
