// SPDX-License-Identifier: MIT OR Apache-2.0
//! Index pages as servers write them, hostile ones, and what holds for any.

use outrigger_proto_http::{Index, Indexed, Url, decode_path, encode_path};
use proptest::prelude::*;

fn base() -> Url {
    Url::parse("http://h:8080/pub/a%20b/").expect("a URL")
}

/// What is listed, as text with a slash after directories.
fn shown(index: &Index) -> Vec<String> {
    let shown = |Indexed { name, is_dir, .. }: &Indexed| {
        format!("{}{}", name.escape_ascii(), if *is_dir { "/" } else { "" })
    };
    index.names.iter().map(shown).collect()
}

#[test]
fn index_pages_of_servers_are_read() {
    let nginx = "<html>\r\n<head><title>Index of /pub/</title></head>\r\n<body>\r\n<h1>Index of /pub/</h1><hr><pre>\
        <a href=\"../\">../</a>\r\n<a href=\"d/\">d/</a>      26-Nov-2026 13:21       -\r\n\
        <a href=\"x%20y%26z%3F\">x y&amp;z?</a>      26-Nov-2026 13:21      1234\r\n</pre><hr></body>\r\n</html>";
    let apache = "<table><tr><th><a href=\"?C=N;O=D\">Name</a></th><th><a href=\"?C=M;O=A\">Last modified</a></th></tr>\
        <tr><td><a href=\"/pub/\">Parent Directory</a></td></tr>\
        <tr><td><a href=\"d/\"><img src=\"/icons/folder.gif\"></a></td><td><a href=\"d/\">d/</a></td></tr>\
        <tr><td><a href=\"x%20y&amp;z%3f\">x y&amp;z?</a></td><td>2026-11-26 13:21 </td><td>1.2K</td></tr></table>\
        <address>Apache at <a href=\"http://other/\">h</a></address>";
    let python =
        "<ul>\n<li><a href=\"d/\">d/</a></li>\n<li><a href=\"x%20y%26z%3F\">x y&amp;z?</a></li>\n</ul>";
    for page in [nginx, apache, python] {
        let index = Index::of_html(&base(), page.as_bytes());
        assert_eq!((shown(&index), index.odd), (vec!["d/".into(), "x y&z?".into()], None), "{page}");
    }
}

#[test]
fn only_pages_of_nginx_tell_sizes_and_only_where_they_are_exact() {
    let line = |rest: &str| format!("<a href=\"f\">f</a>     {rest}");
    let told = |head: &str, rest: &str| {
        let page = format!(
            "<html>\r\n<head></head><body>\r\n{head}\r\n{}\r\n<a href=\"g\">g</a> 1 2 3\r\n",
            line(rest)
        );
        let index = Index::of_html(&base(), page.as_bytes());
        assert_eq!(shown(&index), ["f", "g"], "{page}");
        assert_eq!((index.names[1].size, index.names[1].minute), (None, None));
        (index.names[0].size, index.names[0].minute, index.names[0].modified)
    };
    let nginx = "<h1>Index of /pub/</h1><hr><pre><a href=\"../\">../</a>";
    assert_eq!(told(nginx, "06-Nov-1994 08:49      1234"), (Some(1234), Some(784_111_740), None));
    for rounded in ["12K", "1.2K", "-", "+5", "18446744073709551616", "1 234"] {
        let line = format!("06-Nov-1994 08:49 {rounded}");
        assert_eq!(told(nginx, &line), (None, Some(784_111_740), None), "{rounded}");
    }
    for other in ["1994-11-06 08:49  1234", "06-Nov-1994 1234", "", "1234", "06-Nov-1994\n08:49 1234"] {
        assert_eq!(told(nginx, other), (None, None, None), "{other}");
    }
    let other = "<h1>Index of /pub/</h1><pre><a href=\"../\">Parent Directory</a>";
    assert_eq!(told(other, "06-Nov-1994 08:49      1234"), (None, None, None));
}

#[test]
fn json_of_nginx_tells_all_and_takes_names_that_are_no_text() {
    let page = b"[\n{ \"name\":\"d\", \"type\":\"directory\", \"mtime\":\"Sun, 06 Nov 1994 08:49:37 GMT\" },\n\
        { \"name\":\"x\xff\\\"\", \"type\":\"file\", \"mtime\":\"Sun, 06 Nov 1994 08:49:37 GMT\", \"size\":1234 }\n]";
    let index = Index::of_json(page).expect("an index");
    let [d, x] = &index.names[..] else { panic!("{index:?}") };
    assert_eq!((&d.name[..], d.is_dir, d.modified), (&b"d"[..], true, Some(784_111_777)));
    assert_eq!((&x.name[..], x.is_dir, x.size), (&b"x\xff\""[..], false, Some(1234)));
    assert_eq!(Index::of_json(b"[{}]"), None);
    let hostile = Index::of_json(br#"[{"name":"../../etc","type":"file"},{"name":"ok","type":"file"}]"#);
    let hostile = hostile.expect("an index");
    assert_eq!((shown(&hostile), hostile.odd.as_deref()), (vec!["ok".into()], Some("../../etc")));
}

#[test]
fn links_that_lead_elsewhere_are_left_out_and_what_is_no_name_is_told() {
    for elsewhere in [
        "..",
        "../",
        "../x",
        "%2e%2e/x",
        "./",
        ".",
        "",
        "/",
        "/etc/passwd",
        "/pub/",
        "sub/x",
        "https://h:8080/pub/a%20b/x",
        "http://h/pub/a%20b/x",
        "//other/pub/a%20b/x",
        "http://h:8080@other/pub/a%20b/x",
        "javascript:alert(1)",
        "mailto:x@h",
        "?C=N;O=D",
        "x?download",
        "#top",
        "\\..\\x",
        "http://[",
    ] {
        let index = Index::of_html(&base(), format!("<a href=\"{elsewhere}\">x</a>").as_bytes());
        assert_eq!(index, Index::default(), "{elsewhere}");
    }
    let long = "n".repeat(256);
    for odd in ["a%2Fb", "..%2f..%2fetc", "x%00y", &long, "%2fetc", "..%2F/"] {
        let index = Index::of_html(&base(), format!("<a href=\"{odd}\">x</a>").as_bytes());
        assert!(index.names.is_empty() && index.odd.is_some(), "{odd}: {index:?}");
    }
    for here in
        ["x", "./x", "/pub/a b/x", "/pub/a%20b/x", "http://h:8080/pub/a%20b/x", "y/../x", "/pub/%61%20b/x"]
    {
        let index = Index::of_html(&base(), format!("<a href=\"{here}\">x</a>").as_bytes());
        assert_eq!(shown(&index), ["x"], "{here}");
    }
}

fn name() -> impl Strategy<Value = Vec<u8>> {
    let is_name =
        |name: &Vec<u8>| !matches!(&name[..], b"." | b"..") && !name.contains(&b'/') && !name.contains(&0);
    prop::collection::vec(any::<u8>(), 1..40).prop_filter("a name", is_name)
}

proptest! {
    #[test]
    fn any_name_is_listed_as_it_is_and_stays_in_its_directory(names in prop::collection::hash_set(name(), 1..8)) {
        let names: Vec<_> = names.into_iter().collect();
        let page: String = names.iter().map(|name| format!("<a href=\"{}\">x</a>\n", encode_path(name))).collect();
        let listed = Index::of_html(&base(), page.as_bytes());
        prop_assert_eq!(listed.names.into_iter().map(|file| file.name).collect::<Vec<_>>(), names.clone());
        for name in names {
            prop_assert_eq!(decode_path(encode_path(&name).as_bytes()), name.clone());
            let url = base().join(&format!("/pub/{}", encode_path(&name))).expect("a URL");
            prop_assert_eq!(url.path().matches('/').count(), 2);
        }
    }

    #[test]
    fn any_page_ends_with_names_that_are_such(page in "(<a href=|[\"'<>./%2fa]|&#47;|&amp;|http://h:8080/pub/a%20b/|\\PC){0,40}") {
        let index = Index::of_html(&base(), page.as_bytes());
        for Indexed { name, .. } in index.names {
            prop_assert!(!name.is_empty() && name != b".." && !name.contains(&b'/') && !name.contains(&0));
        }
    }
}
