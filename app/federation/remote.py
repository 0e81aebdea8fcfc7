"""One round over sites that are reached by calls: train, fetch, check, sum, score; who is silent, late or lies is
left out, and named.

Each site has a thread of its own that waits for it. Updates are fetched in parts to disk and looked at two at a
time, and the sum runs over the disk in the order of the sites, behind those that arrive: memory does not grow with
their number.
"""

import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from types import MappingProxyType

import torch

from app.federation.accept import Arrived, Gate, absurd, largest, look_at
from app.federation.answers import (
    SHOWN,
    Answer,
    Dispersed,
    Form,
    Hello,
    SiteLate,
    SiteRefused,
    most_scores,
    read_scores,
)
from app.federation.field import Field, LeftOut, fetch, follow, in_turn, side_by_side
from app.federation.link import SiteSilent
from app.federation.standing import RoundResult, Standing, read_variates
from app.federation.terms import Member, Terms
from app.site.state import Base
from fl_core.aggregate import Absent, BadUpdate, MissingUpdate, aggregate, expected
from fl_core.evaluate import Scored
from fl_core.roles import Roles
from fl_core.state import ServerState, Update
from mammofed.errors import TrainingFailed

OPENING = 60.0  # seconds more for the first answer in a segment: the site opens its data
TAKING = 2  # sites whose updates are fetched and looked at side by side


SumOf = Callable[[Sequence[str], Iterable[Update]], ServerState]  # of these sites, whose updates come in order


class QuorumMissed(TrainingFailed):
    """Too few sites for a round; the last committed round stays."""

    def __init__(self, needed: int, left_out: Mapping[str, LeftOut]) -> None:
        self.left_out = dict(left_out)
        kinds = {reason.kind for reason in left_out.values()}
        self.is_silent = "silent" in kinds  # another segment may reach the site
        self.is_paused = kinds <= {"paused", "absent"}  # to ask again costs nobody any work
        reasons = "; ".join(f"{site}: {reason.text}" for site, reason in left_out.items())
        super().__init__(f"a round needs {needed} sites ({reasons})")


def greet(
    field: Field, sites: Sequence[str], known: Mapping[str, Member], extra: float = 0.0
) -> tuple[dict[str, Answer], dict[str, LeftOut]]:
    """Ask each site who it is: those that can train together, and why the others cannot."""
    said, left_out = side_by_side(lambda site: field.ask(site, "hello", extra, Hello), sites)
    form = field.form or Form.usual(said.values())
    for site, hello in said.items():
        if hello["site"] != site:
            left_out[site] = LeftOut("refused", f"it says that it is {hello['site'][:SHOWN]!r}")
        elif known.get(site, Member.of(hello)) != Member.of(hello):
            left_out[site] = LeftOut("refused", "its training data are not those it began the run with")
        elif Form.of(hello) != form:
            left_out[site] = LeftOut("refused", "its classes or channels differ from those of the others")
        elif hello["paused"]:
            left_out[site] = LeftOut("paused", "paused by its operator")
    return {site: hello for site, hello in said.items() if site not in left_out}, left_out


def one_round(
    field: Field,
    roles: Roles,
    server: ServerState,
    standing: Standing,
    sites: Sequence[str],
    away: Mapping[str, LeftOut] = MappingProxyType({}),
) -> RoundResult:
    """Train at the sites named, and sum what may count; without a quorum, QuorumMissed."""
    torch.set_num_threads(1)  # sums wait for memory, and on a busy machine threads wait for each other
    with ThreadPoolExecutor(1) as pool:
        offering = pool.submit(field.offer, server)
        known, refused = greet(field, sites, standing.members)
    left_out = {**away, **refused}
    members = {**standing.members, **{site: Member.of(hello) for site, hello in known.items()}}
    sum_of = partial(sum_up, field.terms, roles, server, replace(standing, members=members))
    gate = Gate(expected(field.terms.plan.row, roles, server), server, frozenset(roles.statistics))
    while True:
        chosen = [site for site in field.terms.sites if site in known and site not in left_out]
        check_quorum(field.terms, chosen, left_out)
        model, patches = offering.result(), {site: members[site].patches for site in chosen}
        taken = train_at(field, gate, model, standing.bases, patches, sum_of)
        left_out.update(taken.left_out)
        norms = {site: arrived.norms for site, arrived in taken.arrived.items()}
        for site, reason in absurd(norms, standing.norms, field.terms.norm_factor).items():
            left_out[site] = LeftOut("refused", reason)
        if not field.terms.plan.row.meets_layerwise or not any(site in left_out for site in chosen):
            break  # else all meet again: what a site that is left out brought is in the others' updates
    arrived = {site: found for site, found in taken.arrived.items() if site not in left_out}
    check_quorum(field.terms, list(arrived), left_out)
    summed = taken.summed
    if summed is None or len(arrived) < len(chosen):
        summed = sum_of(list(arrived), (found.load() for found in arrived.values()))
    updates = tuple(taken.updates[site] for site in arrived)
    return RoundResult(summed, updates, arrived, members, left_out)


def check_quorum(terms: Terms, sites: Sequence[str], left_out: Mapping[str, LeftOut]) -> None:
    """Refuse to go on with too few sites."""
    if len(sites) < terms.quorum:
        raise QuorumMissed(terms.quorum, left_out)


@dataclass(frozen=True)
class Taken:
    """What the sites brought."""

    arrived: Mapping[str, Arrived]  # in the order of the sites
    updates: Mapping[str, Update]
    summed: ServerState | None  # all of them, where nobody is left out
    left_out: Mapping[str, LeftOut]  # save those who failed since another had left their meeting


def train_at(
    field: Field,
    gate: Gate,
    model: Answer,
    bases: Mapping[str, Base],
    patches: Mapping[str, int],  # of each site, in the order of the sums
    sum_of: SumOf,
) -> Taken:
    """Order, wait, fetch, look at: each site in a thread, some updates at a time; and sum those that have come."""
    key = f"{gate.wanted.round}-{uuid.uuid4().hex}"
    until = field.deadline()
    sites = list(patches)
    meeting = Table(field, key, sites)
    taking = threading.Semaphore(TAKING)
    updates: dict[str, Update] = {}
    arrived: dict[str, Arrived] = {}

    def attend(site: str) -> Answer:
        with meeting.left_by(site):
            order = field.order_of(site, key, model, bases.get(site, Base()))
            done = follow(field, site, "train", {**order, "meets": meeting.is_needed}, until)
            path = field.folder / f"{site}.update"
            with taking:
                fetch(field, site, "update", done, path, largest(gate.wanted), field.deadline())
                found = look_at(path, done["digest"], site, patches[site], gate)
            arrived[site], updates[site] = found
        return done

    left_out: dict[str, LeftOut] = {}
    summed = None
    with closing(in_turn(attend, sites, left_out)) as coming, suppress(MissingUpdate):
        summed = sum_of(sites, (arrived[site].load() for site, _ in coming))
    came = {site: arrived[site] for site in sites if site in arrived}
    reasons = {site: reason for site, reason in left_out.items() if site not in meeting.dispersed}
    return Taken(came, updates, summed, reasons)


class Table:
    """Where sites meet layer by layer, if the row wants it: when one leaves, nobody waits for it any longer."""

    def __init__(self, field: Field, key: str, sites: Sequence[str]) -> None:
        self.field, self.key = field, key
        self.is_needed = field.terms.plan.row.meets_layerwise
        self.leaving = threading.Lock()
        self.sites, self.blamed = frozenset(sites), frozenset[str]()
        self.dispersed: set[str] = set()
        if self.is_needed:
            field.ask("", "meet", key=key, sites=list(sites))

    @contextmanager
    def left_by(self, site: str) -> Iterator[None]:
        """See to it that a site that fails keeps nobody waiting."""
        try:
            yield
        except (SiteSilent, SiteRefused, BadUpdate) as error:
            if self.is_needed:
                self.break_up(site, isinstance(error, SiteLate))
            raise

    def break_up(self, site: str, is_late: bool) -> None:
        """Whoever fails first is to blame; but at the deadline those for whom others wait."""
        with self.leaving:
            if not self.blamed:
                told = self.field.ask("", "disperse", kind=Dispersed, key=self.key)
                waited = told["waiting"] if is_late else []
                self.blamed = self.sites.difference(waited) if waited else frozenset({site})
            if site not in self.blamed:
                self.dispersed.add(site)


def sum_up(
    terms: Terms,
    roles: Roles,
    server: ServerState,
    standing: Standing,
    sites: Sequence[str],
    updates: Iterable[Update],
) -> ServerState:
    """The next server state: the updates of these sites, in their order, then the variates of the absent."""
    patches = {site: member.patches for site, member in standing.members.items()}
    absent = [
        Absent(patches[site], partial(read_variates, standing.variates[site]))
        for site in terms.sites
        if site in standing.variates and site not in sites
    ]
    return aggregate(terms.plan.row, roles, server, updates, {site: patches[site] for site in sites}, absent)


def settle(field: Field, bases: Mapping[str, Base], sites: Sequence[str]) -> None:
    """Tell sites that their proposed state counts; one that does not hear it learns it with its next order."""
    patient = replace(field, terms=replace(field.terms, silence=1.0))
    side_by_side(lambda site: patient.ask(site, "commit", base=asdict(bases[site])), sites)


@dataclass(frozen=True)
class SiteScores:
    """A site's own metrics, and its scores where it shares them."""

    metrics: Answer
    n: int  # test patches above the floor
    scored: Scored | None


def evaluate_at(
    field: Field, server: ServerState, bases: Mapping[str, Base], sites: Sequence[str]
) -> tuple[dict[str, SiteScores], dict[str, LeftOut]]:
    """Have each site score its test patches with the model of a round that is about to be committed."""
    assert field.form is not None  # the sites have said it
    form, key = field.form, f"test-{server.round}-{uuid.uuid4().hex}"
    until = field.deadline()
    model = field.offer(server)
    found: dict[str, SiteScores] = {}

    def attend(site: str) -> Answer:
        order = field.order_of(site, key, model, bases.get(site, Base()))
        told = follow(field, site, "evaluate", {**order, "resamples": field.terms.resamples}, until)
        scored = None
        if told["scores"]:
            path = field.folder / f"{site}.scores"
            fetch(field, site, "scores", told["scores"], path, most_scores(form), field.deadline())
            scored = read_scores(path, form)
        found[site] = SiteScores(told["metrics"], told["n"], scored)
        return told

    _, failed = side_by_side(attend, sites)
    return {site: found[site] for site in sites if site in found}, failed
