// SPDX-License-Identifier: MIT OR Apache-2.0
//! Headers of remote procedure calls as RFC 5531 has them on the wire.

use bytes::Bytes;
use outrigger_proto_xdr::rpc::*;
use outrigger_proto_xdr::*;

mod calculator {
    outrigger_proto_xdr::xdr_program! {
        /// Adds.
        program 0x2000_0001, version 3;
        /// Does nothing.
        Null = 0: () => ();
        /// The sum of numbers.
        Add = 2: List<u32> => Result<u32, Overflow>;
    }

    outrigger_proto_xdr::xdr_status! {
        /// Why there is no sum.
        pub struct Overflow {
            /// Too large.
            TOOLARGE = 1,
        }
    }

    use outrigger_proto_xdr::List;
}

fn caller() -> AuthSys {
    AuthSys {
        stamp: 0x0102_0304,
        machine: Text::new(&b"host"[..]).unwrap(),
        uid: 1000,
        gid: 100,
        gids: Array::new(vec![4, 27]).unwrap(),
    }
}

const CALL: &[u8] = b"\0\0\0\x07\0\0\0\0\0\0\0\x02\x20\0\0\x01\0\0\0\x03\0\0\0\x02\
    \0\0\0\x01\0\0\0\x20\x01\x02\x03\x04\0\0\0\x04host\0\0\x03\xe8\0\0\0\x64\0\0\0\x02\0\0\0\x04\0\0\0\x1b\
    \0\0\0\0\0\0\0\0\
    \0\0\0\x01\0\0\0\x05\0\0\0\0";

fn decode<T: Xdr>(bytes: &[u8]) -> Result<T, DecodeError> {
    T::decode(&mut Decoder::new(Bytes::copy_from_slice(bytes)))
}

fn message(record: Encoder) -> Bytes {
    record::contents(record.finish().into_bytes()).unwrap()
}

#[test]
fn a_call_with_auth_sys() {
    let record = call::<calculator::procedure::Add>(7, &Auth::from(&caller()), &List(vec![5]));
    let message = message(record);
    assert_eq!(message, CALL);
    assert_eq!((xid(&message), is_call(&message)), (Some(7), true));
    let mut input = Decoder::new(message.clone());
    let header = Message::decode(&mut input).unwrap();
    let shown = "{xid=7 body=Call {rpc_version=2 program=536870913 version=3 procedure=2 \
        credential=SYS {stamp=16909060 machine=\"host\" uid=1000 gid=100 gids=[4 27]} verifier=NONE}}";
    assert_eq!(header.to_string(), shown);
    let Body::Call(call) = header.body else { panic!("a call") };
    assert_eq!((call.program, call.version, call.procedure), (0x2000_0001, 3, 2));
    assert_eq!(call.credential.sys(), Ok(caller()));
    let args = calculator::Call::decode(call.procedure, &mut input).unwrap();
    assert_eq!((args.procedure(), args.encoded_len()), (2, 12));
    assert_eq!(args.to_string(), "Add [5]");
    assert_eq!(args, calculator::Call::Add(List(vec![5])));
    let header = Auth::from(&caller());
    assert_eq!(self::message(call_message(7, &header, &args)), message, "made without knowing the procedure");
    assert_eq!(calculator::Call::decode(1, &mut input), Err(DecodeError::Procedure(1)));
    for cut in 0..CALL.len() - 12 {
        assert!(decode::<Message>(&CALL[..cut]).is_err(), "cut at {cut}");
    }
}

#[test]
fn a_reply_with_results() {
    let results: <calculator::procedure::Add as Procedure>::Results = Ok(5);
    let reply = message(success(7, &results));
    assert_eq!(reply[..], *b"\0\0\0\x07\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x05");
    assert!(!is_call(&reply));
    let mut input = Decoder::new(reply.clone());
    let header = Message::decode(&mut input).unwrap();
    assert_eq!(header.body, Body::Reply(accepted(AcceptStatus::Success)));
    let results = calculator::Reply::decode(2, &mut input).unwrap();
    assert_eq!(results.to_string(), "Add OK 5");
    assert_eq!(results, calculator::Reply::Add(Ok(5)));
    assert_eq!(message(success_message(7, &results)), reply, "made without knowing the procedure");
    assert_eq!(calculator::Reply::PROCEDURES, [0, 2]);
}

#[test]
fn calls_that_are_not_executed() {
    let versions = || Versions { low: 2, high: 4 };
    let cases: [(Reply, &[u8], &str); 8] = [
        (
            accepted(AcceptStatus::ProgramUnavailable),
            b"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01",
            "ProgramUnavailable",
        ),
        (
            accepted(AcceptStatus::ProgramMismatch(versions())),
            b"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x02\0\0\0\x02\0\0\0\x04",
            "ProgramMismatch {low=2 high=4}",
        ),
        (
            accepted(AcceptStatus::ProcedureUnavailable),
            b"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x03",
            "ProcedureUnavailable",
        ),
        (accepted(AcceptStatus::GarbageArguments), b"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x04", "GarbageArguments"),
        (accepted(AcceptStatus::SystemError), b"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x05", "SystemError"),
        (
            Reply::Denied(Denied::RpcMismatch(versions())),
            b"\0\0\0\x01\0\0\0\0\0\0\0\x02\0\0\0\x04",
            "RpcMismatch {low=2 high=4}",
        ),
        (
            Reply::Denied(Denied::AuthError(AuthStatus::TOO_WEAK)),
            b"\0\0\0\x01\0\0\0\x01\0\0\0\x05",
            "TOO_WEAK",
        ),
        (
            Reply::Denied(Denied::AuthError(AuthStatus::new(13).unwrap())),
            b"\0\0\0\x01\0\0\0\x01\0\0\0\x0d",
            "AuthError 13",
        ),
    ];
    for (header, bytes, shown) in cases {
        assert!(header.to_string().contains(shown), "{header}");
        let sent = message(reply(9, header.clone()));
        assert_eq!(sent[..], [b"\0\0\0\x09\0\0\0\x01", bytes].concat(), "{header}");
        assert_eq!(decode(&sent), Ok(Message { xid: 9, body: Body::Reply(header) }));
        for cut in 0..sent.len() {
            assert!(decode::<Message>(&sent[..cut]).is_err(), "cut at {cut}");
        }
    }
}

#[test]
fn credentials_of_other_kinds_and_malformed_ones() {
    let other = Auth { flavor: 6, body: Opaque::new(&b"\x01\x02"[..]).unwrap() };
    assert_eq!((other.sys(), other.to_string()), (Err(AuthStatus::TOO_WEAK), "6:0102".to_owned()));
    assert_eq!(Auth::none().to_string(), "NONE");
    let whole = Auth::from(&caller()).body.into_bytes();
    for cut in 0..whole.len() {
        let auth = Auth { flavor: AUTH_SYS, body: Opaque::new(whole.slice(..cut)).unwrap() };
        assert_eq!(auth.sys(), Err(AuthStatus::BAD_CREDENTIAL));
        assert_eq!(auth.to_string().split_once(':').unwrap().0, "1");
    }
    let gids = |count: u32| {
        let head = [b"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", &count.to_be_bytes()[..]].concat();
        let body = Opaque::new([head, vec![0; 4 * count as usize]].concat()).unwrap();
        Auth { flavor: AUTH_SYS, body }.sys().map(|caller| caller.gids.len())
    };
    assert_eq!(gids(16), Ok(16));
    assert_eq!(gids(17), Err(AuthStatus::BAD_CREDENTIAL), "one group too many");
}

#[test]
fn bodies_of_credentials_are_bounded() {
    let most = Auth { flavor: 9, body: Opaque::new(vec![1; AUTH_BODY_MAX]).unwrap() };
    let mut out = Encoder::new(0);
    most.encode(&mut out);
    let bytes = out.finish().into_bytes();
    assert_eq!(decode(&bytes), Ok(most));
    assert_eq!(
        decode::<Auth>(b"\0\0\0\x09\0\0\x01\x91"),
        Err(DecodeError::Length { at: 8, len: 401, max: 400 })
    );
}

#[test]
fn messages_too_short_for_a_header() {
    assert_eq!(xid(b"\0\0\0"), None);
    assert!(!is_call(b"\0\0\0\x01\0\0\0"));
    let neither = DecodeError::Value { at: 8, what: "direction of a message", value: 2 };
    assert_eq!(decode::<Message>(b"\0\0\0\x01\0\0\0\x02"), Err(neither));
}
