"""The teacher answers the prompts itself: its own greedy stream is what will be drafted later."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from daari_mlx.compile.workdir import Workdir
from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.files import read_json, write_json
from daari_mlx.ground.progress import Bar, bar
from daari_mlx.teacher.load import Teacher
from daari_mlx.teacher.ranks import Alone
from daari_mlx.text.data import Prompt, Sequence

PART = 64  # prompts a part holds: what an interrupted run repeats at the most
MAX_BYTES = 1 << 30  # of a part's file: the longest answers of the longest contexts take less
BATCH = 16  # answers that grow side by side: rows of one forward, nearly free where decoding is bound by bandwidth


# (teacher, prompts, the longest answer to each, a bar that is told of each answer) → the greedy answers
Answerer = Callable[[Teacher, list[list[int]], list[int], Bar], list[list[int]]]


def answer_prompts(
    teacher: Teacher,
    prompts: list[Prompt],
    workdir: Workdir,
    max_tokens: int,
    crew: Alone | None = None,
    answerer: Answerer | None = None,
) -> list[Sequence]:
    """Greedy answers of at most ``max_tokens`` tokens, in parts that a resumed run does not repeat.

    Args:
        crew: the ranks that share the parts; None for this process alone.
        answerer: who lets the teacher answer; None for mlx-lm's batches. All give the same ids.

    Returns:
        One sequence a prompt that got an answer, its end-of-sequence token included.
    """
    crew = crew or Alone()
    parts = [prompts[start : start + PART] for start in range(0, len(prompts), PART)]
    paths = [workdir.answers_path(number) for number in range(len(parts))]
    left = crew.mine(paths)
    total = sum(len(parts[k]) for k in left)
    with bar(total=total, desc="teacher answers", unit="prompt", shown=crew.rank == 0) as progress:
        for number in left:
            tokens = [p.tokens for p in parts[number]]
            answers = (answerer or _answer)(teacher, tokens, budgets(teacher, tokens, max_tokens), progress)
            crew.still_together()
            write_json(paths[number], {"answers": answers})
    crew.gather(paths, everyone=True)
    sequences: list[Sequence] = []
    for part, path in zip(parts, paths, strict=True):
        for prompt, answer in zip(part, _read_answers(path, len(part)), strict=True):
            if answer:
                whole, start = prompt.tokens + answer, len(prompt.tokens)
                sequences.append(Sequence(whole, start, prompt.row, prompt.source, prompt.identity))
    if not sequences:
        raise DaariError("The teacher gave no answer to any prompt: it ended each at once. Use --answers reference.")
    return sequences


def _read_answers(path: Path, count: int) -> list[list[int]]:
    what = "teacher's answers (remove it and run again: that part is answered anew)"
    answers = read_json(path, what, limit=MAX_BYTES).get("answers")
    if (
        not isinstance(answers, list)
        or len(answers) != count
        or not all(isinstance(answer, list) and all(type(t) is int and t >= 0 for t in answer) for answer in answers)
    ):
        raise DaariError(
            f"{path} should hold the answers to {count} prompts and is damaged: remove it and run again, "
            "the teacher answers that part anew."
        )
    return answers


def budgets(teacher: Teacher, prompts: list[list[int]], max_tokens: int) -> list[int]:
    """The longest answer to each prompt: ``max_tokens``, or what the teacher's context leaves."""
    limit = teacher.context_length
    return [max_tokens if limit is None else max(1, min(max_tokens, limit - len(p))) for p in prompts]


def _answer(teacher: Teacher, prompts: list[list[int]], max_tokens: list[int], progress: Bar) -> list[list[int]]:
    """The greedy answers to some prompts, batched where mlx-lm can batch this model's cache."""
    from mlx_lm.generate import BatchGenerator
    from mlx_lm.models.cache import make_prompt_cache

    if not all(hasattr(type(c), "merge") for c in make_prompt_cache(teacher.model)):
        return [_answer_alone(teacher, p, n, progress) for p, n in zip(prompts, max_tokens, strict=True)]
    generator = BatchGenerator(
        teacher.model,
        stop_tokens=[[t] for t in teacher.tokenizer.eos_token_ids],
        completion_batch_size=BATCH,
        prefill_batch_size=min(8, BATCH),
    )
    try:
        uids = generator.insert(prompts, max_tokens=max_tokens)
        answers: dict[int, list[int]] = {uid: [] for uid in uids}
        prefilled, told = dict.fromkeys(uids, 0), {uid: progress.unit() for uid in uids}
        # in tokens, at the latest
        ends = {uid: len(p) + n for uid, p, n in zip(uids, prompts, max_tokens, strict=True)}
        while any(both := generator.next()):
            for read in both[0]:
                prefilled[read.uid] = read.progress[0]
                told[read.uid](read.progress[0], ends[read.uid])
            for response in both[1]:
                uid, answer = response.uid, answers[response.uid]
                answer.append(int(response.token))
                done = ends[uid] if response.finish_reason is not None else prefilled[uid] + len(answer)
                told[uid](done, ends[uid])
    finally:
        generator.close()
    return [answers[uid] for uid in uids]


def _answer_alone(teacher: Teacher, prompt: list[int], max_tokens: int, progress: Bar) -> list[int]:
    import mlx_lm

    answer: list[int] = []
    told, end = progress.unit(), len(prompt) + max_tokens
    steps = mlx_lm.stream_generate(
        teacher.model,
        teacher.tokenizer,
        prompt,
        max_tokens=max_tokens,
        prompt_progress_callback=lambda done, _: told(done, end),
    )
    for response in steps:
        answer.append(response.token)
        told(len(prompt) + len(answer), end)
    told(end, end)
    return answer
