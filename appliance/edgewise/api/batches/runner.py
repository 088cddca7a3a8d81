"""Works batches off, a few lines at a time, behind everybody who waits for an answer (deadline class "background").

All truth is in the store: after a crash the runner finds what was not done and does it. A line's result and the fact that it is
done are one commit, so the output has each line exactly once; a line that was under way at the crash is done again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

from edgewise.api.body import parse_json
from edgewise.api.deps import ApiDependencies
from edgewise.api.errors import error_body, internal_error
from edgewise.api.generate import Prepare
from edgewise.api.unattended import TextEndpoint, Unattended, answer_unattended, may_pass
from edgewise.core.errors import EdgewiseError, NotFound, ShuttingDown
from edgewise.core.log import get_logger
from edgewise.core.patience import end_task, wait_set
from edgewise.core.priority import priority_of
from edgewise.core.privacy import privacy_of
from edgewise.pipeline.batches.files import StoredFile
from edgewise.pipeline.batches.lines import Line, LineError, read_line, read_lines
from edgewise.pipeline.batches.store import Batch, Status
from edgewise.pipeline.receipts import Usage

log = get_logger(__name__)

ROUTE = "/v1/batches"
_LOOK_S = 30.0  # expiry is looked at this often, at least
_TIDY_S = 3600.0
_RETRY_S = 5.0  # after a fault of the disk
_MAX_BACKOFF_S = 30.0
_ROWS = 500
_KEEP_NOTHING: Mapping[str, int] = {}


class BatchRunner:
    """Args:
    endpoints: What a line may ask.
    concurrency: Lines under way at once.
    """

    def __init__(self, deps: ApiDependencies, endpoints: Mapping[str, Prepare], *, concurrency: int = 4) -> None:
        self._deps = deps
        self._store = deps.batches
        self._files = deps.files
        self._endpoints = endpoints
        self._concurrency = concurrency
        self._lines: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._main: asyncio.Task[None] | None = None
        self._stopped = False

    def __repr__(self) -> str:
        return f"BatchRunner(lines={len(self._lines)}, concurrency={self._concurrency})"

    def start(self) -> None:
        self._main = asyncio.create_task(self._run(), name="batches")

    async def stop(self) -> None:
        """End at once; lines under way are done again after the next start. To let them end, drain the requests first."""
        self._stopped = True
        await end_task(*self._lines.values(), self._main)

    async def _run(self) -> None:
        tidy_at = 0.0
        while not (self._stopped or self._deps.draining):
            if (now := self._deps.clock.monotonic()) >= tidy_at:
                tidy_at = now + _TIDY_S
                await self._tidy()
            pause = _LOOK_S
            self._store.changed.clear()
            try:
                for batch in self._fairly(await self._store.unfinished()):
                    await self._advance(batch)
            except EdgewiseError as error:  # the disk refuses: it may not for ever
                log.warning("batches_wait", reason=error.message)
                pause = _RETRY_S
            except Exception:
                log.exception("batches_broke")
                pause = _RETRY_S
            await wait_set(self._store.changed, pause)

    async def _tidy(self) -> None:
        try:
            await self._store.prune(self._deps.keep.files_s)
            await self._deps.conversations.prune()
            removed = await self._files.sweep()
        except EdgewiseError as error:
            log.warning("tidying_failed", reason=error.message)
            return
        if removed:
            log.info("files_removed", count=removed)

    def _fairly(self, batches: list[Batch]) -> list[Batch]:
        """Owners with the fewest lines under way first, then the oldest batch."""
        owner_of = {batch.id: batch.owner for batch in batches}
        busy = Counter(owner_of[id] for id, _ in self._lines if id in owner_of)
        return sorted(batches, key=lambda batch: busy[batch.owner])

    # --- one batch --------------------------------------------------------------------------------------------------------

    async def _advance(self, batch: Batch) -> None:
        """Do what a batch needs now; returns without waiting for lines."""
        late = self._deps.clock.time() >= batch.expires_at
        if batch.status == "cancelling":
            await self._end_early(batch, "cancelled", "The batch was cancelled before this line was done.")
        elif late and batch.status in ("validating", "in_progress"):
            await self._end_early(batch, "expired", "The batch expired before this line was done.")
        elif batch.status == "validating":
            await self._validate(batch)
        elif batch.status == "in_progress":
            await self._fill(batch)
        else:
            await self._write_files(batch, "completed")

    async def _validate(self, batch: Batch) -> None:
        try:
            lines, errors = await asyncio.to_thread(
                read_lines,
                await self._input(batch),
                endpoint=batch.endpoint,
                max_lines=self._deps.keep.batch_lines,
                max_line_bytes=self._deps.limits.max_body_bytes,
            )
        except (NotFound, FileNotFoundError):
            lines, errors = [], [LineError("file_not_found", "The input file was deleted.", None, "input_file_id")]
        if errors:
            await self._store.refuse(batch, errors)
        else:
            await self._store.accept(batch, lines)
        self._store.changed.set()

    async def _fill(self, batch: Batch) -> None:
        """Start lines as far as there is room; with none left, go on to the files."""
        mine = [number for id, number in self._lines if id == batch.id]
        room = self._concurrency - len(self._lines)
        if room <= 0:
            return
        lines = await self._store.waiting(batch, room, mine)
        if not lines and not mine:
            await self._store.finalize(batch)
            self._store.changed.set()
        for line in lines:
            key = (batch.id, line.number)
            self._lines[key] = asyncio.create_task(self._do(batch, line), name=f"{batch.id}/{line.number}")
            self._lines[key].add_done_callback(partial(self._done, key))

    def _done(self, key: tuple[str, int], _: asyncio.Task[None]) -> None:
        del self._lines[key]
        self._store.changed.set()

    async def _end_early(self, batch: Batch, status: Status, message: str) -> None:
        mine = [task for (id, _), task in self._lines.items() if id == batch.id]
        await end_task(*mine)
        await self._store.give_up(batch, f"batch_{status}", message)
        await self._write_files(batch, status)

    async def _write_files(self, batch: Batch, status: Status) -> None:
        """The results as files, then the end; a crash between leaves files that nobody knows, which the next start removes."""
        output = await self._write_results(batch, "done")
        errors = await self._write_results(batch, "failed")
        await self._store.close(
            batch,
            status,
            output_file=None if output is None else output.id,
            error_file=None if errors is None else errors.id,
        )
        log.info("batch_ended", batch=batch.id, status=status)

    async def _write_results(self, batch: Batch, state: Any) -> StoredFile | None:
        first = await self._store.results(batch, state, 0, _ROWS)
        if not first:
            return None
        loop = asyncio.get_running_loop()

        def write(file: BinaryIO) -> None:
            """On a thread; rows come from the event loop, some at a time."""
            rows = first
            while rows:
                file.write("".join(f"{row['result']}\n" for row in rows).encode())
                more = self._store.results(batch, state, rows[-1]["line"], _ROWS)
                rows = asyncio.run_coroutine_threadsafe(more, loop).result()

        kind = "output" if state == "done" else "error"
        keep_s = self._deps.keep.files_s if batch.output_expires_s is None else float(batch.output_expires_s)
        name = f"{batch.id}_{kind}.jsonl"
        return await self._files.add(batch.owner, purpose="batch_output", filename=name, write=write, expires_s=keep_s)

    async def _input(self, batch: Batch) -> Path:
        return self._files.path((await self._files.get(batch.owner, batch.input_file, param="input_file_id")).id)

    # --- one line ---------------------------------------------------------------------------------------------------------

    async def _do(self, batch: Batch, line: Line) -> None:
        """Answer a line and keep the result; on a fault that may pass, wait and try again until the batch expires."""
        pause = 1.0
        while True:
            try:
                await self._try(batch, line)
            except ShuttingDown:
                return  # it waits for the next start
            except EdgewiseError as error:
                log.warning("batch_line_waits", batch=batch.id, line=line.number, reason=error.message)
                await self._deps.clock.sleep(min(max(error.retry_after_s or 0.0, pause), _MAX_BACKOFF_S))
                pause = min(2 * pause, _MAX_BACKOFF_S)
            except Exception as error:  # outermost frame of a task; the batch must not stand still
                log.exception("batch_line_broke", batch=batch.id, line=line.number)
                await self._keep(batch, line, _new_id(), internal_error(error))
                return
            else:
                return

    async def _try(self, batch: Batch, line: Line) -> None:
        """Raises `EdgewiseError` for what may pass; everything else is the line's result."""
        request_id = _new_id()
        try:
            raw = await asyncio.to_thread(read_line, await self._input(batch), line)
        except (NotFound, OSError):
            gone = NotFound("The input file was deleted before this line was done.", param="input_file_id")
            await self._keep(batch, line, request_id, gone)
            return
        asked = Unattended(
            id=request_id,
            route=ROUTE,
            owner=batch.owner,
            priority=priority_of(batch.priority),
            privacy=None if batch.privacy is None else privacy_of(batch.privacy),
        )
        try:
            endpoint = TextEndpoint(self._endpoints[batch.endpoint])
            answered = await answer_unattended(self._deps, endpoint, asked, parse_json(raw)["body"])
        except EdgewiseError as error:
            if may_pass(error):
                raise
            await self._keep(batch, line, request_id, error)
        else:
            await self._keep(batch, line, request_id, answered.body, answered.usage)

    async def _keep(
        self,
        batch: Batch,
        line: Line,
        request_id: str,
        answer: dict[str, Any] | EdgewiseError,
        usage: Usage | None = None,
    ) -> None:
        failed = isinstance(answer, EdgewiseError)
        status = answer.http_status if isinstance(answer, EdgewiseError) else 200
        body = error_body(answer) if isinstance(answer, EdgewiseError) else answer
        result = {
            "id": f"batch_{request_id}",
            "custom_id": line.custom_id,
            "response": {"status_code": status, "request_id": request_id, "body": body},
            "error": None,
        }
        tokens = _KEEP_NOTHING if usage is None else _tokens(usage)
        await self._store.finish_line(batch, line.number, result, failed=failed, usage=tokens)


def _tokens(usage: Usage) -> dict[str, int]:
    return {
        "input_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens or 0,
        "output_tokens": usage.completion_tokens,
    }


def _new_id() -> str:
    return f"req_{uuid4().hex}"
