"""Generates scripts for shell completion from the parser of the command line."""

import argparse
import sys
from collections.abc import Iterator

SHELLS = ("bash", "zsh", "fish")
_WHERE = """\
where to put the script:
  bash   hvdlite completion bash > ~/.local/share/bash-completion/completions/hvdlite
  zsh    hvdlite completion zsh > "${fpath[1]}/_hvdlite"
  fish   hvdlite completion fish > ~/.config/fish/completions/hvdlite.fish
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of ``hvdlite completion``."""
    parser.add_argument("shell", choices=SHELLS)
    parser.epilog = _WHERE


def run(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Prints the completion script for a shell; returns the exit status 0."""
    sys.stdout.write(generate(arguments.shell, parser))
    return 0


def subparsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The parsers of the subcommands by name."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def generate(shell: str, parser: argparse.ArgumentParser) -> str:
    """The completion script for a shell.

    Args:
        shell: one of SHELLS.
        parser: the parser of the whole command line.
    """
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](parser)


def _options(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        if action.option_strings and action.help != argparse.SUPPRESS:
            yield action


def _takes_value(action: argparse.Action) -> bool:
    return action.nargs != 0 and not isinstance(action, argparse._HelpAction | argparse._VersionAction)


def _names_file(action: argparse.Action) -> bool:
    return action.metavar in ("FILE", "FOLDER", "PATH")


def _positional_choices(parser: argparse.ArgumentParser) -> list[str]:
    return [str(word) for action in parser._actions if not action.option_strings for word in action.choices or ()]


def _starts_program(parser: argparse.ArgumentParser) -> bool:
    return any(action.nargs == argparse.REMAINDER for action in parser._actions)


def _bash(parser: argparse.ArgumentParser) -> str:
    lines = [
        "# bash completion for hvdlite; made by `hvdlite completion bash`.",
        "_hvdlite() {",
        '    local current="${COMP_WORDS[COMP_CWORD]}" previous="${COMP_WORDS[COMP_CWORD-1]}" place',
        "    COMPREPLY=()",
        '    if [ "$COMP_CWORD" -eq 1 ]; then',
        f'        COMPREPLY=($(compgen -W "{" ".join([*subparsers(parser), *_names(parser)])}" -- "$current"))',
        "        return",
        "    fi",
        '    case "${COMP_WORDS[1]}" in',
    ]
    for name, sub in subparsers(parser).items():
        lines += [f"    {name})", *_bash_subcommand(sub), "        ;;"]
    return "\n".join([*lines, "    esac", "}", "complete -F _hvdlite hvdlite", ""])


def _names(parser: argparse.ArgumentParser) -> list[str]:
    return [name for action in _options(parser) for name in action.option_strings]


def _bash_subcommand(parser: argparse.ArgumentParser) -> list[str]:
    valued = [action for action in _options(parser) if _takes_value(action)]
    lines = []
    if _starts_program(parser):  # a program follows the flags, and has its own completion
        with_value = "|".join(name for action in valued for name in action.option_strings)
        lines += [
            "        for ((place = 2; place < COMP_CWORD; place++)); do",
            '            case "${COMP_WORDS[place]}" in',
            f"            {with_value}) place=$((place + 1)) ;;",
            "            -*) ;;",
            "            *)",
            "                if declare -F _command_offset >/dev/null; then _command_offset $place",
            '                else COMPREPLY=($(compgen -f -- "$current")); fi',
            "                return",
            "                ;;",
            "            esac",
            "        done",
        ]
    lines.append('        case "$previous" in')
    for action in valued:
        lines.append(f"        {'|'.join(action.option_strings)}) {_bash_value(action)}; return ;;")
    lines.append("        esac")
    words = " ".join([*_positional_choices(parser), *_names(parser)])
    lines.append(f'        COMPREPLY=($(compgen -W "{words}" -- "$current"))')
    if _starts_program(parser):
        lines.append('        [ "${current:0:1}" = - ] || COMPREPLY=($(compgen -c -- "$current") $(compgen -f -- "$current"))')
    return lines


def _bash_value(action: argparse.Action) -> str:
    if action.choices:
        return f'COMPREPLY=($(compgen -W "{" ".join(map(str, action.choices))}" -- "$current"))'
    return 'COMPREPLY=($(compgen -f -- "$current"))' if _names_file(action) else ":"


def _summary(action: argparse.Action) -> str:
    return (action.help or "").replace("%%", "%").split(" [")[0]


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _zsh(parser: argparse.ArgumentParser) -> str:
    lines = ["#compdef hvdlite", "# made by `hvdlite completion zsh`", "_hvdlite() {", "  if (( CURRENT == 2 )); then"]
    lines += ["    local -a subcommands=("]
    for name, sub in subparsers(parser).items():
        lines.append(f"      {_quoted(f'{name}:{sub.description}')}")
    lines += ["    )", "    _describe subcommand subcommands", "    return", "  fi", '  case "$words[2]" in']
    for name, sub in subparsers(parser).items():
        lines += [f"  {name})", "    shift words; (( CURRENT-- ))", "    _arguments -S \\"]
        specs = [spec for action in _options(sub) for spec in _zsh_specs(action)]
        choices = _positional_choices(sub)
        specs += [_quoted(f"1:{name}:({' '.join(choices)})")] if choices else []
        specs += ["'*::program:_normal'"] if _starts_program(sub) else []
        lines += [f"      {spec} \\" for spec in specs[:-1]] + [f"      {specs[-1]}", "    ;;"]
    return "\n".join([*lines, "  esac", "}", '_hvdlite "$@"', ""])


def _zsh_specs(action: argparse.Action) -> Iterator[str]:
    summary = _summary(action).replace("[", "(").replace("]", ")").replace(":", "\\:")
    value = ""
    if _takes_value(action):
        what = f"({' '.join(map(str, action.choices))})" if action.choices else "_files" if _names_file(action) else " "
        value = f":{str(action.metavar or action.dest).lower()}:{what}".replace("|", " ").replace("[=value]", "")
    for name in action.option_strings:
        yield _quoted(f"*{name}[{summary}]{value}")


def _fish(parser: argparse.ArgumentParser) -> str:
    names = " ".join(subparsers(parser))
    lines = ["# fish completion for hvdlite; made by `hvdlite completion fish`.", "complete -c hvdlite -f"]
    for name, sub in subparsers(parser).items():
        alone = f"not __fish_seen_subcommand_from {names}"
        lines.append(f"complete -c hvdlite -n {_quoted(alone)} -a {name} -d {_quoted(str(sub.description))}")
        seen = _quoted(f"__fish_seen_subcommand_from {name}")
        for word in _positional_choices(sub):
            lines.append(f"complete -c hvdlite -n {seen} -a {word}")
        for action in _options(sub):
            flags = " ".join(_fish_name(option) for option in action.option_strings)
            value = " -x" if _takes_value(action) and not _names_file(action) else " -r -F" if _takes_value(action) else ""
            value += f" -a {_quoted(' '.join(map(str, action.choices)))}" if action.choices else ""
            lines.append(f"complete -c hvdlite -n {seen} {flags}{value} -d {_quoted(_summary(action))}")
        if _starts_program(sub):
            lines.append(f"complete -c hvdlite -n {seen} -a '(__fish_complete_subcommand)' -F")
    return "\n".join([*lines, ""])


def _fish_name(option: str) -> str:
    if option.startswith("--"):
        return f"-l {option[2:]}"
    return f"-s {option[1:]}" if len(option) == 2 else f"-o {option[1:]}"
