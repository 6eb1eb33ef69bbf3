// SPDX-License-Identifier: MIT OR Apache-2.0
//! Answers of WebDAV servers, hostile ones, and what holds for any.

use outrigger_proto_http::{Member, Multistatus, Url, encode_path};
use proptest::prelude::*;

fn asked() -> Url {
    Url::parse("http://h:8080/pub/a%20b/").expect("a URL")
}

fn read(body: &str) -> Multistatus {
    Multistatus::of(&asked(), body.as_bytes()).expect("an answer")
}

/// An answer with a response for each of these.
fn answer(hrefs: &[&str]) -> String {
    let response = |href: &&str| {
        let ok = "<d:status>HTTP/1.1 200 OK</d:status>";
        format!(
            "<d:response><d:href>{href}</d:href><d:propstat><d:prop><d:resourcetype/></d:prop>{ok}</d:propstat></d:response>"
        )
    };
    let responses: String = hrefs.iter().map(response).collect();
    format!("<d:multistatus xmlns:d=\"DAV:\">{responses}</d:multistatus>")
}

#[test]
fn an_answer_of_apache_is_read() {
    let apache = r#"<?xml version="1.0" encoding="utf-8"?>
<D:multistatus xmlns:D="DAV:" xmlns:ns0="DAV:">
<D:response xmlns:lp1="DAV:" xmlns:lp2="http://apache.org/dav/props/" xmlns:g0="DAV:">
<D:href>/pub/a%20b/</D:href>
<D:propstat><D:prop>
<lp1:resourcetype><D:collection/></lp1:resourcetype>
<lp1:getlastmodified>Sun, 06 Nov 1994 08:49:37 GMT</lp1:getlastmodified>
<lp1:getetag>"1000-66131cfc441d5"</lp1:getetag>
</D:prop><D:status>HTTP/1.1 200 OK</D:status></D:propstat>
<D:propstat><D:prop><g0:getcontentlength>7</g0:getcontentlength></D:prop><D:status>HTTP/1.1 404 Not Found</D:status></D:propstat>
</D:response>
<D:response xmlns:lp1="DAV:"><D:href>/pub/a%20b/x%25%c3%bc&amp;'%22&#x2E;t</D:href>
<D:propstat><D:prop><lp1:resourcetype/><lp1:getcontentlength>12</lp1:getcontentlength>
<lp1:getetag>W/"2"</lp1:getetag></D:prop><D:status>HTTP/1.1 200 OK</D:status></D:propstat></D:response>
</D:multistatus>"#;
    let Multistatus { own, members, odd, failed } = read(apache);
    let tag = Some("\"1000-66131cfc441d5\"".to_owned());
    let modified = Some(784_111_777);
    assert_eq!(own, Some(Member { is_dir: true, modified, tag, ..Member::default() }));
    let name = "x%\u{fc}&'\".t".as_bytes().to_vec();
    assert_eq!(members, [Member { name, size: Some(12), tag: Some("W/\"2\"".into()), ..Member::default() }]);
    assert_eq!((odd, failed), (None, None));
}

#[test]
fn other_forms_of_servers_are_read() {
    let body = r#"<multistatus xmlns="DAV:"><response>
<href><![CDATA[https://H/pub/a b/d/]]></href>
<propstat><prop><resourcetype><collection/><calendar xmlns="urn:x"/></resourcetype>
<quota-available-bytes>99</quota-available-bytes><getcontentlength>4096</getcontentlength>
<x:getetag xmlns:x="urn:other">"no"</x:getetag><getetag>"a&#13;&#10;b"</getetag></prop><status>HTTP/1.1 200 OK</status></propstat></response>
<response><href>/pub/a%20b/closed/</href><status>HTTP/1.1 403 Forbidden</status></response></multistatus>"#;
    let Multistatus { own, members, odd, failed } = read(body);
    let d = Member { name: b"d".to_vec(), is_dir: true, free: Some(99), ..Member::default() };
    let closed = Member { name: b"closed".to_vec(), is_dir: true, ..Member::default() };
    assert_eq!((own, members, odd, failed), (None, vec![d, closed], None, Some(403)));
}

#[test]
fn what_is_elsewhere_or_is_no_name_is_told_and_never_listed() {
    let long = "n".repeat(256);
    for odd in [
        "..",
        "/pub/a%20b/..",
        "/pub/a%20b/%2e%2e/x",
        "/pub/a%20b/x/y",
        "/pub/a%20b/x%2Fy",
        "/pub/a%20b/..%2f..%2fetc",
        "/pub/a%20b/x%00y",
        "/pub/a%20b/x\\y",
        "/pub/a%20b/x\ty",
        "/pub/a%20b//x",
        "/pub/",
        "/",
        "",
        "/etc/passwd",
        "http://other/pub/a%20b/x",
        "//other/pub/a%20b/x",
        "http://h:8080@other/pub/a%20b/x",
        "/pub/a%20b/x?y",
        "/pub/a%20b/x#y",
        "javascript:alert(1)",
        "http://[",
        &long,
    ] {
        let all = read(&answer(&[odd, "/pub/a%20b/good"]));
        assert!(all.own.is_none() && all.odd.is_some(), "{odd}: {all:?}");
        assert_eq!(all.members.iter().map(|member| &member.name[..]).collect::<Vec<_>>(), [b"good"], "{odd}");
    }
}

#[test]
fn bombs_and_what_is_no_answer_are_refused() {
    let bomb = "<!DOCTYPE x [<!ENTITY a \"aaaaaaaaaa\"><!ENTITY b \"&a;&a;&a;&a;\">]>";
    let many: String = (0..40).map(|number| format!(" xmlns:n{number}=\"urn:{number}\"")).collect();
    let good = answer(&["/pub/a%20b/x"]);
    for (body, why) in [
        (format!("{bomb}{}", answer(&["/pub/a%20b/&b;"])), "document type"),
        (answer(&["/pub/a%20b/&b;"]), "entity"),
        (format!("<d:multistatus xmlns:d=\"DAV:\">{}", "<x>".repeat(100_000)), "nested"),
        (format!("<d:multistatus xmlns:d=\"DAV:\"><x{many}/></d:multistatus>"), "attributes"),
        (good[..good.len() - 5].to_owned(), ""),
        (good.replace("</d:href>", "</d:status>"), ""),
        ("<html><p>Welcome</p></html>".to_owned(), "too early"),
        ("<multistatus xmlns=\"urn:other\"/>".to_owned(), "too early"),
        (String::new(), "too early"),
    ] {
        let refused = Multistatus::of(&asked(), body.as_bytes()).expect_err(&body[..body.len().min(99)]);
        assert!(refused.to_string().contains(why), "{refused}");
    }
    assert!(Multistatus::of(&asked(), b"<d:multistatus xmlns:d=\"DAV:\">\xff</d:multistatus>").is_err());
}

fn name() -> impl Strategy<Value = Vec<u8>> {
    let is_name =
        |name: &Vec<u8>| !matches!(&name[..], b"." | b"..") && !name.contains(&b'/') && !name.contains(&0);
    prop::collection::vec(any::<u8>(), 1..40).prop_filter("a name", is_name)
}

proptest! {
    #[test]
    fn any_name_is_listed_as_it_is(names in prop::collection::vec(name(), 1..8), is_absolute in any::<bool>()) {
        let before = if is_absolute { "http://h:8080/pub/a%20b/" } else { "/pub/a%20b/" };
        let hrefs: Vec<_> = names.iter().map(|name| format!("{before}{}", encode_path(name))).collect();
        let all = read(&answer(&hrefs.iter().map(|href| &href[..]).collect::<Vec<_>>()));
        prop_assert_eq!(all.odd, None);
        prop_assert_eq!(all.members.into_iter().map(|member| member.name).collect::<Vec<_>>(), names);
    }

    #[test]
    fn any_answer_ends_with_names_that_are_such(
        pieces in prop::collection::vec(
            prop::sample::select(vec![
                "<d:multistatus xmlns:d=\"DAV:\">", "</d:multistatus>", "<d:response>", "</d:response>", "<d:href>",
                "</d:href>", "<d:propstat>", "</d:propstat>", "<d:prop>", "</d:prop>", "/pub/a%20b/", "x", "..", "%2f",
                "%00", "&#47;", "&amp;", "<d:collection/>", "<d:status>HTTP/1.1 200 OK</d:status>", "<![CDATA[", "]]>",
            ]),
            0..40,
        ),
    ) {
        if let Ok(all) = Multistatus::of(&asked(), pieces.concat().as_bytes()) {
            for Member { name, .. } in all.members {
                prop_assert!(!name.is_empty() && name != b".." && !name.contains(&b'/') && !name.contains(&0));
            }
        }
    }
}
