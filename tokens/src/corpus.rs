//! Texts on which a tokenizer has to prove itself when it is loaded.

/// Texts of the kinds that tell tokenizers apart: blanks, digits, scripts, composed and decomposed letters, code.
const TEXTS: [&str; 22] = [
    "Hello, world!",
    "The quick brown fox jumps over the lazy dog.",
    " leading blank",
    "trailing blank ",
    "two  blanks   three    four",
    "\n\n\nline\n breaks \r\n and\ttabs\t\t",
    "1234567890 3.14159 1,000,000 0x1F",
    "it's they're I'll WE'VE don't",
    "fn main() {\n    println!(\"{}\", x[0] >> 2);\n}\n",
    "{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Z\u{fc}rich\"}}",
    "caf\u{e9} cafe\u{301} \u{212b} \u{fb01}ne \u{1e9e}",
    "\u{4f60}\u{597d}\u{ff0c}\u{4e16}\u{754c}\u{3002}",
    "\u{3053}\u{3093}\u{306b}\u{3061}\u{306f} \u{c548}\u{b155}",
    "\u{645}\u{631}\u{62d}\u{628}\u{627} \u{5e9}\u{5dc}\u{5d5}\u{5dd} \u{928}\u{92e}\u{938}\u{94d}\u{924}\u{947}",
    "\u{1f468}\u{200d}\u{1f469}\u{200d}\u{1f467} \u{1f3f3}\u{fe0f}\u{200d}\u{1f308} \u{1f44d}\u{1f3fd}",
    "\u{0}\u{1}\u{7f}\u{85}\u{a0}\u{2028}\u{feff}\u{fffd}",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "\u{2581}under\u{2581}bar _ __ ",
    "<|im_start|>user\nhi<|im_end|>\n<s>[INST] hi [/INST]</s>",
    "<| im_start |> <tool_call> </think>",
    "https://example.org/a?b=c&d=%20#e",
    "MiXeD CaSe \u{130}\u{131} \u{3a3}\u{3c3}\u{3c2}",
];

/// How many of the added tokens are tried; some models have thousands.
const TOKENS: usize = 24;

/// The texts by themselves, and strung together by the tokenizer's own added tokens.
pub(crate) fn texts(added: &[String]) -> Vec<String> {
    let mut texts: Vec<String> = TEXTS.iter().map(|&text| text.to_owned()).collect();
    for (nth, token) in added.iter().take(TOKENS).enumerate() {
        let (one, other) = (TEXTS[nth % TEXTS.len()], TEXTS[(nth * 7 + 3) % TEXTS.len()]);
        texts.push(format!(
            "{token}{one}{token}\n{other} {token} {token}{token}{one}"
        ));
        texts.push(format!("{one} {token}{other}"));
    }
    texts.push(String::new());
    texts
}
