"""The chats, template snippets and texts of which vectors are made."""

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a place, e.g. \"Zürich\" & <others>.",
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string", "description": "Where"},
                "days": {"type": "array", "items": {"type": "integer"}, "default": [1, 2.5, 1e-7, 1e17]},
                "unit": {"type": "string", "enum": ["C", "F"], "default": None},
            },
            "required": ["place"],
            "additionalProperties": False,
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock", "strict": True, "parameters": {"type": "object", "properties": {}}}}


def call(name, arguments, id="abcdef123"):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def user(content, **more):
    return {"role": "user", "content": content, **more}


def assistant(content, **more):
    return {"role": "assistant", "content": content, **more}


def tool(content, id="abcdef123", **more):
    return {"role": "tool", "tool_call_id": id, "content": content, **more}


def system(content):
    return {"role": "system", "content": content}


def part(text, **more):
    return {"type": "text", "text": text, **more}


LONG = [
    system("You are terse."),
    user("Hello there"),
    assistant("Hi."),
    user("  spaced  \n"),
    assistant("\n\nLeading lines, trailing blank "),
    user("Wie geht's? 你好 😀 <|im_end|> {{ not a template }}"),
]
CALLS = [
    system("Use functions."),
    user("Weather in Paris?"),
    assistant(None, tool_calls=[call("get_weather", '{"place": "Paris", "days": [1, 2.50, 1e3], "deep": {"b": 1, "a": [true, null, "é\\u00e9\\n"]}}')]),
    tool('{"temperature": 20}'),
    assistant("It is 20 °C."),
    user("And in Rome?"),
    assistant("Let me see.", tool_calls=[call("get_weather", '{"place":"Rome"}', "123456789")]),
    tool([part("part one"), part("part two")], "123456789"),
]


def bodies():
    yield "one", {"messages": [user("Hello, world!")]}
    yield "long", {"messages": LONG}
    yield "ends with assistant", {"messages": LONG[1:3], "add_generation_prompt": False}
    yield "no generation prompt", {"messages": LONG, "add_generation_prompt": False}
    yield "calls", {"messages": CALLS, "tools": [WEATHER, CLOCK]}
    yield "calls without tools", {"messages": CALLS}
    yield "calls, not chosen", {"messages": CALLS, "tools": [WEATHER], "tool_choice": "none"}
    yield "calls, required", {"messages": CALLS, "tools": [WEATHER], "tool_choice": "required"}
    yield "tools, no call", {"messages": [user("Hi")], "tools": [WEATHER, CLOCK]}
    yield "tools, system", {"messages": LONG[:2], "tools": [CLOCK]}
    two = [user("both"), assistant("", tool_calls=[call("a", "{}", "aaaaaaaaa"), call("b", '{"x": "y"}', "bbbbbbbbb")]), tool("1", "aaaaaaaaa"), tool("2", "bbbbbbbbb"), assistant("done"), user("more")]
    yield "two calls", {"messages": two}
    yield "empty arguments", {"messages": [user("x"), assistant(None, tool_calls=[call("a", "")]), tool("r"), user("y")]}
    yield "arguments are a list", {"messages": [user("x"), assistant("c", tool_calls=[call("a", "[1]")]), tool("r"), user("y")]}
    yield "arguments are broken", {"messages": [user("x"), assistant("c", tool_calls=[call("a", '{"a": ')]), tool("r"), user("y")]}
    yield "arguments with repeats", {"messages": [user("x"), assistant("c", tool_calls=[call("a", '{"a": 1, "b": 2, "a": 3}')]), tool("r"), user("y")]}
    yield "no calls", {"messages": [user("x"), assistant("c", tool_calls=[]), user("y")]}
    yield "call with more members", {"messages": [user("x"), assistant("c", tool_calls=[{"index": 0, **call("a", "{}")}]), tool("r"), user("y")]}
    yield "arguments as an object", {"messages": [user("x"), assistant("c", tool_calls=[{"id": "1", "type": "function", "function": {"name": "a", "arguments": {}}}]), user("y")]}
    yield "parts", {"messages": [system([part("be"), part("brief")]), user([part("one "), part(" two")]), assistant([part("three")]), user("four")]}
    yield "parts with more", {"messages": [user([part("cached", cache_control={"type": "ephemeral"})])]}
    yield "parts as strings", {"messages": [user(["plain", part("text")])]}
    yield "no parts", {"messages": [user([])]}
    yield "thinking", {"messages": [user("x"), assistant("<think>\nhm\n</think>\n\nfour"), user("y"), assistant("<think>a</think>b")], "add_generation_prompt": False}
    yield "reasoning", {"messages": [user("x"), assistant("four", reasoning_content="hm\n"), user("y"), assistant("five", reasoning="\nwell")], "add_generation_prompt": False}
    yield "reasoning both", {"messages": [user("x"), assistant("four", reasoning="this", reasoning_content="that"), user("y")]}
    yield "thinking off", {"messages": [user("x")], "chat_template_kwargs": {"enable_thinking": False}}
    yield "effort none", {"messages": [user("x")], "reasoning_effort": "none"}
    yield "effort low", {"messages": [user("x")], "reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False}}
    yield "date given", {"messages": [user("x")], "chat_template_kwargs": {"date_string": "1 May 2030", "unused": [1]}}
    yield "argument null", {"messages": [user("x")], "chat_template_kwargs": {"date_string": None}}
    yield "argument auto", {"messages": [user("x")], "chat_template_kwargs": {"date_string": "auto"}}
    yield "argument for the prompt", {"messages": [user("x")], "chat_template_kwargs": {"add_generation_prompt": False}}
    yield "other begin", {"messages": [user("x")], "chat_template_kwargs": {"bos_token": "<|im_start|>"}}
    yield "documents", {"messages": [user("x")], "documents": [{"title": "T", "text": "body"}, {"text": "untitled one"}]}
    yield "continue", {"messages": [user("Count"), assistant("1, 2,")], "add_generation_prompt": False, "continue_final_message": True}
    yield "continue, blank", {"messages": [user("Count"), assistant("1, 2, ")], "add_generation_prompt": False, "continue_final_message": True}
    yield "continue, parts", {"messages": [user("Count"), assistant([part("1"), part("2")])], "add_generation_prompt": False, "continue_final_message": True}
    yield "continue and prompt", {"messages": [user("Count"), assistant("1")], "continue_final_message": True}
    yield "continue user", {"messages": [user("Say: ")], "add_generation_prompt": False, "continue_final_message": True}
    yield "special tokens", {"messages": [user("x")], "add_special_tokens": True}
    yield "truncated", {"messages": [user("many words in a row")], "truncate_prompt_tokens": 7}
    yield "truncated on the right", {"messages": [user("many words in a row")], "truncate_prompt_tokens": 7, "truncation_side": "right"}
    yield "name", {"messages": [user("x", name="bob"), assistant("y", name="ann"), user("z", other=["dropped"])]}
    yield "developer", {"messages": [{"role": "developer", "content": "be brief"}, user("x")]}
    yield "developer in the middle", {"messages": [system("a"), user("x"), {"role": "developer", "content": "b"}, user("y")]}
    yield "two systems", {"messages": [system("a"), system("b"), user("x")]}
    yield "custom role", {"messages": [user("x"), {"role": "critic", "content": "no"}]}
    yield "without content", {"messages": [user("x"), {"role": "assistant"}, user("y")]}
    yield "null content", {"messages": [user(None)]}
    yield "not alternating", {"messages": [user("x"), user("y")]}
    yield "billing header", {"messages": [system("x-anthropic-billing-header: cch=1\nBe nice."), system("x-anthropic-billing-header: 2"), user("x")]}
    yield "no messages", {"messages": []}
    yield "no tools", {"messages": [user("x")], "tools": []}
    yield "blanks", {"messages": [user("\u001c a \u0085\u00a0\u2003"), assistant("\t\n b \u001f"), user("\u200b c \ufeff")]}
    yield "composed", {"messages": [user("e\u0301 é ﬁ \u212b İ ß"), assistant("ǅ ΑΣ"), user("👨‍👩‍👧")]}


def completions():
    text = "Hello, world! The quick brown fox jumps."
    yield {"prompt": text}
    yield {"prompt": text, "add_special_tokens": False}
    yield {"prompt": [text, "two"]}
    for keep in (0, 1, 2, 3, 5, 500):
        for side in (None, "left", "right"):
            for add in (True, False):
                yield {"prompt": text, "truncate_prompt_tokens": keep, "truncation_side": side, "add_special_tokens": add}
    yield {"prompt": text, "truncate_prompt_tokens": -2}
    yield {"prompt": text, "truncate_prompt_tokens": 3, "truncation_side": "middle"}


RICH = {
    "messages": CALLS,
    "tools": [WEATHER, CLOCK],
    "chat_template_kwargs": {
        "n": 7, "f": 2.5, "big": 1e16, "small": 0.00001, "zero": 0, "neg": -3, "t": True, "empty": "", "nothing": [],
        "words": ["b", "A", "c", "a", "B"], "numbers": [3, 1, 2, 3], "mixed": [1, "x", None, True, 2.0],
        "quote": "it's", "both": "it's \"so\"", "lines": "a\nb\n\nc", "uni": "Zürich 你好", "map": {"b": 1, "a": {"c": [1]}, "C": "x"},
        "people": [{"name": "Ann", "age": 3}, {"name": "Bob", "age": None}, {"name": "cy"}], "html": "<a href='x'>&</a>", "spaces": "  x y  ",
    },
}


def snippets():
    for number, template in enumerate(SNIPPETS.strip("\n").split("\n---\n")):
        yield f"snippet {number}", template, RICH


SNIPPETS = r"""
{{ t }} {{ none }} {{ n }} {{ f }} {{ big }} {{ small }} {{ neg }} {{ words }} {{ map }} {{ mixed }} {{ quote }} {{ [quote, both] }} {{ missing }}
---
{{ 'a' ~ t ~ none ~ n ~ f ~ big ~ small ~ map ~ mixed ~ (1 if t else 2) ~ missing }}|{{ n ~ n }}|{{ words|length ~ 'x' }}|{{ messages[0].role ~ ':' ~ messages[0]['content'] }}
---
{{ map | tojson }} {{ map | tojson(indent=2) }} {{ map | tojson(sort_keys=true) }} {{ uni | tojson(ensure_ascii=true) }} {{ map|tojson(separators=(',', ':')) }} {{ nothing | tojson(indent=1) }} {{ html | tojson }}
---
{{ [1, 2.0, 1e100, -0.5, true, none, 'x', big, small] | tojson }} {{ tools[0] | tojson(indent=4) }}
---
{{ messages[2] | tojson }} {{ messages[3] | tojson }} {{ messages[2].tool_calls[0] | tojson }}
---
{{ words | join(', ') }} {{ numbers | join }} {{ mixed | join('-') }} {{ people | map(attribute='name') | join(' ') }} {{ words | map('upper') | join }}
---
{{ words | first }} {{ words | last }} {{ words | length }} {{ words | reverse | list }} {{ 'abc' | reverse }} {{ numbers | unique | list }} {{ nothing | first }} {{ words | count }}
---
{{ missing | default('d') }} {{ empty | default('d') }} {{ empty | default('d', true) }} {{ none | default('d') }} {{ missing | d }}{{ map.zz | default([]) | length }}
---
{{ spaces | trim }}|{{ spaces.strip() }}|{{ spaces.lstrip() }}|{{ spaces.rstrip() }}|{{ '--x-'.strip('-') }}|{{ lines | trim('a') }}|{{ n | trim }}
---
{{ lines.split('\n') }} {{ 'a b  c'.split() }} {{ 'a,b,c'.split(',', 1) }} {{ 'a,b'.split(',')[-1] }} {{ 'x'.join(['1', '2']) }} {{ quote.replace("'", '"') }} {{ 'aXbX' | replace('X', 'y') }} {{ 'aXbX'.replace('X', 'y', 1) }}
---
{% for k, v in map.items() %}{{ k }}={{ v }};{% endfor %}{% for k, v in map | items %}{{ k }}{% endfor %}{% for k in map %}{{ k }}{% endfor %}{% for k, v in map | dictsort %}{{ k }}{% endfor %}{{ map.keys() | list }}{{ map.values() | list }}{{ map.get('b') }}{{ map.get('zz', 'no') }}{{ map.get('zz') }}
---
{{ map is mapping }} {{ words is sequence }} {{ words is iterable }} {{ 'x' is string }} {{ 'x' is iterable }} {{ 'x' is sequence }} {{ map is iterable }} {{ map is sequence }} {{ n is number }} {{ t is number }} {{ t is integer }} {{ n is integer }} {{ f is float }} {{ t is boolean }} {{ none is none }} {{ missing is defined }} {{ missing is undefined }} {{ n is odd }} {{ n is even }} {{ n is divisibleby 7 }} {{ t is true }} {{ 1 is true }} {{ false is false }}
---
{{ 'b' in words }} {{ 'x' not in words }} {{ 'b' in map }} {{ 'ür' in uni }} {{ 1 in [true] }} {{ n == 7.0 }} {{ t == 1 }} {{ none == false }} {{ '1' == 1 }} {{ 1 < 2 < 3 }} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }} {{ not missing }} {{ missing == none }} {{ words == ['b', 'A', 'c', 'a', 'B'] }}
---
{{ n + 1 }} {{ n / 2 }} {{ n // 2 }} {{ n % 4 }} {{ neg // 2 }} {{ neg % 2 }} {{ n * 2.0 }} {{ n ** 2 }} {{ -n }} {{ 'ab' * 3 }} {{ [1] + [2] }} {{ 'a' + 'b' }} {{ 6 / 3 }} {{ 2 ** -1 }} {{ t + 1 }} {{ f + 0.1 }} {{ 0.1 + 0.2 }}
---
{{ words[0] }} {{ words[-1] }} {{ words[1:3] }} {{ words[::-1] }} {{ words[:-1] }} {{ uni[1:4] }} {{ uni[::-1] }} {{ uni[-2:] }} {{ words[9:] }} {{ words[::2] }} {{ 'abc'[1] }} {{ words[99] }}
---
{% set ns = namespace(a=1, b=[]) %}{% for x in numbers %}{% set ns.a = ns.a + x %}{% set ns.b = ns.b + [x] %}{% endfor %}{{ ns.a }} {{ ns.b }} {{ ns.zz }}
---
{% set x = 1 %}{% for i in [1, 2] %}{% set x = x + i %}{{ x }}{% endfor %}{{ x }}{% if true %}{% set x = 9 %}{% endif %}{{ x }}
---
{% for x in words %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.cycle('o', 'e') }}{{ loop.depth }};{% else %}none{% endfor %}{% for x in nothing %}x{% else %}none{% endfor %}
---
{% for x in words if x != 'c' %}{{ loop.index }}{{ x }}{% if loop.last %}.{% endif %}{% endfor %}{% for x in numbers %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% if x == 2 %}{% break %}{% endif %}{% endfor %}
---
{% macro m(a, b='B', c=none) %}[{{ a }},{{ b }},{{ c }}]{% endmacro %}{{ m(1) }}{{ m(1, 2) }}{{ m(1, c=3) }}{{ m(b=1, a=2) }}{{ m() }}{% set s = m('x') %}{{ s | length }}{{ s + 'y' }}
---
{% macro outer(x) %}{% macro inner(y) %}<{{ y }}{{ x }}>{% endmacro %}{{ inner(1) }}{% endmacro %}{{ outer(2) }}{% macro rec(k) %}{{ k }}{% if k > 0 %}{{ rec(k - 1) }}{% endif %}{% endmacro %}{{ rec(3) }}
---
{% macro late() %}{{ later }}{% endmacro %}{% set later = 'set' %}{{ late() }}
---
{% set early = 'one' %}{% macro sees() %}{{ early }}{{ n }}{% endmacro %}{% set early = 'two' %}{{ sees() }}
---
{% macro wrap() %}<{{ caller() }}>{% endmacro %}{% call wrap() %}inner {{ n }}{% endcall %}{% set block %}captured {{ n }}{% endset %}{{ block }}{{ block | length }}{% filter upper %}loud{% endfilter %}{% with z = 5 %}{{ z }}{% endwith %}{{ z }}
---
{# comment #}a {#- b -#} c
  {% if true %}
    x
  {% endif %}
  {%- if true -%}  y  {%- endif -%}  z
{{ n }}
{% raw %}{{ raw }}{% endraw %}
	{% if true %}tab{% endif %}
{%+ if true %}plus{% endif +%}
end
---
{{ people | selectattr('age') | map(attribute='name') | list }} {{ people | selectattr('age', 'defined') | list | length }} {{ people | rejectattr('age', 'none') | map(attribute='name') | list }} {{ people | selectattr('name', 'equalto', 'Bob') | list }} {{ numbers | select('odd') | list }} {{ numbers | reject('gt', 2) | list }} {{ numbers | select('equalto', 3) | list }} {{ mixed | select | list }} {{ people | map(attribute='age', default=0) | list }}
---
{{ '12' | int }} {{ 'x' | int }} {{ 3.9 | int }} {{ n | string + '!' }} {{ neg | abs }} {{ 'abC' | capitalize }} {{ 'abC' | upper }} {{ 'ABc' | lower }} {{ html }} {{ html | safe }}
---
{{ uni | upper }} {{ 'ß'.upper() }}
---
{{ uni.startswith('Z') }} {{ uni.endswith('好') }} {{ 'abcabc'.find('c') }} {{ 'abcabc'.rfind('c') }} {{ 'abcabc'.count('bc') }} {{ 'x'.startswith(('y', 'x')) }} {{ uni.find('你') }}
---
{{ range(3) | list }} {{ range(1, 7, 2) | list }} {% for i in range(3) %}{{ i }}{% endfor %} {{ dict(a=1, b='x') }} {{ {'k': n, 'l': [f]} }} {{ (1, 'x') }} {{ (1,) }}
---
{{ missing.attribute }}
---
{{ missing }}{% for x in missing %}{{ x }}{% endfor %}{{ missing | length }}{{ missing ~ 'x' }}{% if missing %}y{% endif %}{{ map.zz.zz is defined }}
---
{{ 'a' if false }}|{{ 'a' if t else 'b' }}|{{ empty or 'fallback' }}|{{ n and 'yes' }}|{{ none or missing or 0 }}|{{ (n > 3) and not t }}
---
{{ tools | length }}{% for tool in tools %}{% for name, spec in tool.function.parameters.properties.items() %}{{ name }}:{{ spec.type }}{% if spec.enum %}{{ spec.enum | join('/') }}{% endif %}{% endfor %}{% endfor %}
---
{% for tool in tools %}{{ tool.function.parameters.properties.days['items'] }}{% endfor %}
---
{{ messages | length }}{{ messages[-1].content }}{{ messages[-2].tool_calls[0].function.name }}{{ messages | map(attribute='role') | join(',') }}{{ (messages | selectattr('role', 'equalto', 'user') | list)[-1].content }}
---
{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set c = [a, b] %}{{ c }}{% set d = {'x': 1} %}{{ d.x }}{{ d['x'] }}
---
{{ '%s is %d' % ('x', 3) }}
---
{{ '{} {}'.format(1, 2) }}
---
{{ "a\nb\t\"c\" \u00e9 \x41 \\ \'" }}{{ 'single \' "double"' }}
---
{{ 1_000 }} {{ 0x10 }} {{ 1e3 }} {{ 1.50 }}
---
{{ words | sort }} {{ numbers | sort }} {{ numbers | sum }} {{ numbers | max }} {{ numbers | min }}
---
{{ lines | indent(2) }}
---
{{ namespace }}
---
{{ words | tojson | length }}{{ words[1:] | tojson }}{{ words | map('lower') | tojson }}
---
{{ (words | map('lower') | list) | tojson }}{{ messages[1:3] | length }}{{ words[1:] }}{{ words[1:] ~ '' }}
---
{% if words[1:] == ['A', 'c', 'a', 'B'] %}equal{% else %}other{% endif %}{{ words[1:] is sequence }}{{ words[1:] is iterable }}{{ (words | reverse) is iterable }}{{ words[:0] is defined }}{% if words[:0] %}true{% else %}false{% endif %}
---
{{ strftime_now('%Y-%m-%d %H:%M:%S %p %I %A %a %B %b %y %% %F %T') }}
---
{{ strftime_now('%j') }}
---
{{ 'x' is in ['x'] }}{{ n is eq 7 }}{{ n is lt 8 }}{{ 'a' is sameas 'a' }}{{ n is not none }}{{ none is sameas none }}{{ t is sameas true }}
---
{{ numbers[0] if numbers else 'none' }}{{ numbers[-1:][0] }}{{ 'a,b'.split(',') | last }}{{ 'x=1'.split('=')[1] | int + 1 }}
---
{%- for m in messages -%}{%- if m.content is none -%}none{%- elif m.content is string -%}{{ m.content | length }}{%- else -%}other{%- endif -%}{{ ' ' if not loop.last }}{%- endfor -%}
---
{{ messages[0].get('content') }}{{ messages[0].get('zz', 'no') }}{{ 'content' in messages[0] }}{{ messages[2].tool_calls is defined }}{{ messages[1].tool_calls is defined }}{{ messages[2].tool_calls | length }}
---
{{ true and 1 }}{{ 0 or false }}{{ True }}{{ False }}{{ None }}{{ none }}
---
{{ [[1, 2], [3]] }}{{ [] }}{{ {} }}{{ '' }}{{ [none, true] }}{{ [''] }}{{ ['\n'] }}{{ ['é'] }}
---
{{ none is iterable }}{{ missing is iterable }}{{ missing is sequence }}{{ missing is mapping }}{{ missing is string }}{{ 5 is iterable }}{{ none is sequence }}{{ true is iterable }}{{ none is mapping }}{{ missing is number }}{{ missing is none }}
---
{{ missing | length }}{% for x in missing %}{{ x }}{% endfor %}{{ missing ~ 'x' }}{{ missing | list }}{{ missing | join(',') }}|{{ missing | string }}|{{ missing | upper }}|{{ missing | trim }}|{{ missing | first }}
---
{% for x in none %}{% endfor %}
---
{{ none | length }}
---
{{ 'a' in none }}
---
{{ 'a' in missing }}
---
{{ 'a' + 1 }}
---
{{ none.x is defined }}{{ none['x'] is defined }}{{ 'abc'.x is defined }}{{ 'abc'['x'] is defined }}{{ words.x is defined }}{{ words['x'] is defined }}{{ n.x is defined }}
---
{{ 'a' ~ 1 + 2 }}
---
{{ 'a' ~ (1 + 2) }}{{ 1 if missing is defined and missing else 2 }}{{ not t == false }}{{ "x" * 0 }}{{ loop is defined }}
---
{% for a, b in [[1, 2], [3, 4]] %}{{ a }}{{ b }}{% endfor %}{% for x in [1, 2] %}{% set outer = loop %}{% for y in [3] %}{{ outer.index }}{{ loop.index }}{% endfor %}{% endfor %}
---
{{ 'a'.split('x') }}{{ ''.split(',') }}{{ ''.split() }}{{ messages[1].content.split('in')[0] }}{{ 'a.b.c'.split('.')[1:] | list }}
---
{{ numbers | map('string') | join }}{{ people | map(attribute='name') | map('upper') | list }}{{ map | length }}{{ map | list }}{{ map | first }}{{ 'abc' | list }}{{ 'abc' | first }}{{ uni | length }}
---
{% set ns = namespace() %}{{ ns.x is defined }}{{ namespace(a=1).a }}{{ range(10)[2:5] | list }}{{ map.zz | default('q') }}{{ (missing or {}).get('a', 3) }}
---
{{ map['items'] }}
---
{% for tool in tools %}{% for name, spec in tool.function.parameters.properties.items() %}{% if spec['type'] == 'array' %}{{ spec['items']['type'] }}{{ spec['items'] | tojson }}{{ spec['items'] is mapping }}{% endif %}{% endfor %}{% endfor %}
---
{{ map.items }}
---
{{ words | tojson(2) }}
---
{{ 'a' if missing.x is defined else 'b' }}
---
{{ messages[9].content }}
---
{{ messages[9] is defined }}{{ messages[-1].role }}{{ messages[0].missing }}{{ messages[0]['missing'] }}
---
{{ (messages | first).role }}{{ (messages | last).role }}{{ (messages | length) - 1 }}{{ messages[(messages | length) - 1].role }}
---
{% set text = '' %}{% for w in words %}{% set text = text + w %}{% endfor %}[{{ text }}]{% set ns = namespace(text='') %}{% for w in words %}{% set ns.text = ns.text ~ w ~ loop.index %}{% endfor %}{{ ns.text }}
---
{%- macro show(value, depth=0) -%}{%- if value is mapping -%}{%- for k, v in value.items() -%}{{ ' ' * depth }}{{ k }}:{{ show(v, depth + 1) }}{%- endfor -%}{%- elif value is iterable and value is not string -%}[{%- for v in value -%}{{ show(v, depth) }},{%- endfor -%}]{%- else -%}{{ value }}{%- endif -%}{%- endmacro -%}{{ show(tools[0]) }}
---
{% if not (n is defined and n > 3) %}a{% elif n in [7, 8] and words | length > 2 %}b{% else %}c{% endif %}{{ 'x' if n is defined and n is not none and n }}
---
{{ '' is string and not '' }}{{ '0' | int == 0 }}{{ ('a' ~ 'b') is string }}{{ (1, 2) | length }}{{ 'abc'[:2] ~ 'abc'[2:] }}{{ 'abc' | replace('b', '') }}{{ words | map('length') | list }}
---
{{ empty | default('d', boolean=true) }}
---
{{ words | join(d='-') }}
---
{{ spaces | trim(chars=' ') }}
---
{{ 'aXbX' | replace(old='X', new='y') }}
---
{{ words | unique | list }}
---
{{ 'a,b,c'.split(sep=',') }}
---
{{ map | dictsort(reverse=true) | map('first') | join }}
---
{{ map | dictsort(by='value') }}
---
{{ words | map(attribute='zz') | list }}
---
{{ map.items() | list }}
---
{{ '5' | int(9) }}{{ 'x' | int(default=9) }}
---
{{ numbers | select('divisibleby', 3) | list }}{{ people | selectattr('name', 'in', ['Ann']) | list | length }}{{ range(0) | list | length }}
---
{{ people | map(attribute='zz', default='q') | list }}
---
{{ words.count('a') }}
---
{{ words.index('c') }}
---
{{ words.append('x') }}
---
{{ map.update({}) }}{{ map.pop('b') }}
---
{{ 'abc'.isdigit() }}
---
{{ '%s' | format('x') }}
---
{{ words | map('title') | list }}
---
{{ words | select('startingwith', 'a') | list }}
---
{{ words[0:2] | join }}{{ words | select('in', ['a', 'b']) | join }}{{ words | select('ne', 'a') | join }}{{ words | select('string') | list | length }}
---
{{ words | first | upper }}{{ none | string }}{{ missing | default(none) is none }}{{ 0 | default(1) }}{{ 0 | default(1, true) }}
---
{{ people[0].name.split('n') }}{{ people | map(attribute='age') | select('number') | list }}{{ people | rejectattr('age') | list | length }}
---
{{ 'x'.strip(chars='x') }}
---
{% set a = namespace(x=[]) %}{% set a.x = a.x + ['q'] %}{{ a.x | join }}{{ a.x | length }}{% set m = dict(k=1) %}{{ m.k }}{{ m | length }}
---
{% for group in words | batch(2) %}{{ group | join }}{% endfor %}
---
{{ messages[1:] | selectattr('role', 'eq', 'user') | map(attribute='content') | join('|') }}{{ messages | rejectattr('role', 'in', ['user', 'tool']) | list | length }}
"""


SAMPLES = [
    "", " ", "  ", "\n", "hello", " hello", "hello ", "Hello, World!", "it's we'LL I'd", "1234567 3.14 1,000", "a  b   c    d",
    "\t\ttabs\n\n\nlines\r\n", "fn f(x: &str) -> Vec<u8> { x.as_bytes().to_vec() }", "Zürich, naïve café", "cafe\u0301 \u212b \ufb01",
    "你好，世界。", "こんにちは", "안녕하세요", "नमस्ते दुनिया", "สวัสดี", "مرحبا", "שלום", "😀👨‍👩‍👧‍👦🏳️‍🌈👍🏽", "\u0000\u0001\u007f", "\u00a0\u2003\u200b\ufeff",
    "▁under▁score", "baton batons Baton abaton", "Single Singles aSingle Single.", "<mask> <mask><mask>  <mask>  x", "x <right>   y<right>\n z",
    "a" * 300, " " * 70, "=" * 100, "0" * 50, "ab " * 60, "https://example.org/?a=b&c=%20", "{\"a\": [1, 2, {\"b\": null}]}", "\u2028\u2029 x \u0085",
]


def texts(rng, special):
    yield from SAMPLES
    pool = SAMPLES + special * 3
    for _ in range(60):
        yield "".join(rng.choice(pool) + rng.choice(["", "", " ", "\n", "  "]) for _ in range(rng.randint(2, 7)))
